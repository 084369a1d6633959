//! The flash sale in full size on Redis and MariaDB: its table, its plot, and the promises it must keep.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::shell;

const PAGE: &str = "docs/guides/flash-sale.md";
const PLOT: &str = "docs/guides/flash-sale.svg";
/// The figures stand between these lines of the page.
const MARKS: [&str; 2] = ["<!-- figures: written by `cargo xtask bench sale` -->", "<!-- end of figures -->"];

const STOCK: u64 = 1000;
const SIZE: &[&str] = &["--json", "--instances", "4", "--stock", "1000", "--buyers", "20000"];
/// How often the two that are compared are run, in turns.
const TURNS: usize = 3;
const COMPARED: &[&str] = &["--strategy", "plain-lock", "--strategy", "lockkeeper"];
/// Buyers at a time in each process, beside all.
const CROWDS: &[&str] = &["25", "200", "1000"];
/// How many times the plain lock's orders per second ours must be.
const RATIO_MIN: f64 = 3.0;

/// One row of the sale's own table, as JSON.
type Rows = Vec<Value>;

/// Build as for all benchmarks, run, print, write the page.
pub(crate) fn run() -> Result<(), String> {
    let bins = ["--bin", "lockkeeper", "--bin", "lockkeeper-bench-sale"];
    let packages = ["--package", "lockkeeper-cli", "--package", "lockkeeper-bench"];
    let features = ["--features", "lockkeeper-cli/demo"];
    let args = [&["build", "--profile", "bench"], packages.as_slice(), &features, &bins].concat();
    shell::step("build", "cargo", &args)?;
    let all = sell(PLOT, &[])?;
    let mut ratios = vec![ratio(&all)?];
    while ratios.len() < TURNS {
        ratios.push(ratio(&sell(&scratch(), COMPARED)?)?);
    }
    let promises = promises(&all, &ratios);
    let text = format!(
        "4 processes, {STOCK} pieces, 20,000 buyers, all at once:\n\n{}\n{}\nThe same two with fewer buyers at a time in \
         each process, while the others stand outside:\n\n{}",
        table(&all),
        promises.table,
        crowds(&all)?,
    );
    shell::say(&text);
    write_page(&text)?;
    if promises.kept { Ok(()) } else { Err("the flash sale breaks a promise; see the table".to_owned()) }
}

/// Run some strategies on fresh servers.
fn sell(plot: &str, more: &[&str]) -> Result<Rows, String> {
    let args = [&["target/release/lockkeeper"], SIZE, &["--plot", plot], more].concat();
    let (text, ended) = shell::output_even_if_failed("target/release/lockkeeper-bench-sale", &args)?;
    // A strategy that oversells ends with 1 and still has a table.
    serde_json::from_str(&text).map_err(|it| ended.err().unwrap_or_else(|| format!("no table: {it}")))
}

fn scratch() -> String {
    std::env::temp_dir().join("lockkeeper-bench-sale.svg").display().to_string()
}

fn row<'a>(rows: &'a Rows, strategy: &str) -> Result<&'a Value, String> {
    rows.iter().find(|it| it["strategy"] == strategy).ok_or_else(|| format!("no row of {strategy}"))
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or(f64::NAN)
}

/// Our orders per second by those of the plain lock.
fn ratio(rows: &Rows) -> Result<f64, String> {
    let speed = |strategy| row(rows, strategy).map(|it| number(it, "orders_per_second"));
    Ok(speed("lockkeeper")? / speed("plain-lock")?)
}

/// How the comparison depends on how many ask at a time.
fn crowds(all: &Rows) -> Result<String, String> {
    let mut out = "| at a time in each process | `plain-lock` orders/s | its commands per order | `lockkeeper` orders/s | its \
        commands per order | ratio |\n|---|---|---|---|---|---|\n"
        .to_owned();
    let mut add = |crowd: &str, rows: &Rows| -> Result<(), String> {
        let (plain, ours) = (row(rows, "plain-lock")?, row(rows, "lockkeeper")?);
        let speed = |it| number(it, "orders_per_second");
        let commands = |it| number(it, "lock_commands_per_order");
        let _ = writeln!(
            out,
            "| {crowd} | {:.0} | {:.1} | {:.0} | {:.2} | {:.1} |",
            speed(plain),
            commands(plain),
            speed(ours),
            commands(ours),
            ratio(rows)?
        );
        Ok(())
    };
    for crowd in CROWDS {
        add(crowd, &sell(&scratch(), &[&["--at-once", crowd], COMPARED].concat())?)?;
    }
    add("all 5,000", all)?;
    Ok(out)
}

struct Promises {
    table: String,
    kept: bool,
}

fn promises(rows: &Rows, ratios: &[f64]) -> Promises {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    let turns: Vec<String> = ratios.iter().map(|it| format!("{it:.1}")).collect();
    let is_exact = |it: &&Value| it["sold"] == STOCK && it["oversold"] == 0 && it["unbooked"] == 0;
    let exact = rows.iter().filter(|it| it["strategy"] != "no-lock").filter(is_exact).count();
    let oversold =
        rows.iter().find(|it| it["strategy"] == "no-lock").map_or(0.0, |it| number(it, "oversold"));
    let lines = [
        ("strategies that promise it and sold exactly the stock", format!("{exact} of 6"), exact == 6),
        ("pieces sold too many without a lock (must be seen)", format!("{oversold}"), 0.0 < oversold),
        (
            "orders per second, times the plain lock (at least 3)",
            format!("{median:.1} (turns: {})", turns.join(", ")),
            RATIO_MIN <= median,
        ),
    ];
    let mut table = "| promise | figure | kept |\n|---|---|---|\n".to_owned();
    for (what, figure, kept) in &lines {
        let _ = writeln!(table, "| {what} | {figure} | {} |", if *kept { "yes" } else { "**no**" });
    }
    Promises { table, kept: lines.iter().all(|it| it.2) }
}

fn table(rows: &Rows) -> String {
    let mut out =
        "| strategy | sold | oversold | failed | orders/s | wait p50 | wait p99 | lock commands per order | \
        statements per order |\n|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for row in rows {
        let name = row["strategy"].as_str().unwrap_or("?");
        if let Some(why) = row["left_out"].as_str() {
            let _ = writeln!(out, "| `{name}` | {why} | | | | | | | |");
            continue;
        }
        let of = |name| number(row, name);
        let _ = writeln!(
            out,
            "| `{name}` | {} | {} | {} | {:.0} | {:.0} ms | {:.0} ms | {:.2} | {:.2} |",
            of("sold"),
            of("oversold"),
            of("failed"),
            of("orders_per_second"),
            of("wait_p50_ms"),
            of("wait_p99_ms"),
            of("lock_commands_per_order"),
            of("db_statements_per_order")
        );
    }
    out
}

fn write_page(figures: &str) -> Result<(), String> {
    let page = fs::read_to_string(PAGE).map_err(|it| format!("{PAGE}: {it}"))?;
    let page = between(&page, figures).ok_or_else(|| format!("{PAGE} has lost the line `{}`", MARKS[0]))?;
    fs::write(PAGE, page).map_err(|it| format!("{PAGE}: {it}"))
}

/// The page with new figures.
fn between(page: &str, figures: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}\n\n{}\n\n{}{after}", MARKS[0], figures.trim_end(), MARKS[1]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_replace_those_before_and_nothing_else() {
        let page = format!("a\n{}\nold\n{}\nz\n", MARKS[0], MARKS[1]);
        let once = between(&page, "new\n").unwrap();
        assert_eq!(once, format!("a\n{}\n\nnew\n\n{}\nz\n", MARKS[0], MARKS[1]));
        assert_eq!(between(&once, "new\n").unwrap(), once);
        assert_eq!(between("no marks", "new"), None);
    }

    #[test]
    fn a_promise_that_is_not_kept_is_noticed() {
        let row = |name: &str, sold: u64| {
            json!({ "strategy": name, "sold": sold, "unbooked": 0,
            "oversold": sold.saturating_sub(STOCK), "orders_per_second": if name == "lockkeeper" { 40 } else { 10 } })
        };
        let names = ["no-lock", "a", "b", "c", "plain-lock", "two-tier", "lockkeeper"];
        let mut rows: Rows = names.iter().map(|it| row(it, STOCK)).collect();
        assert!(!promises(&rows, &[4.0]).kept, "without a lock it must be seen to fail");
        rows[0] = row("no-lock", STOCK + 5);
        assert!(promises(&rows, &[ratio(&rows).unwrap()]).kept);
        assert!(!promises(&rows, &[2.9, 2.0, 9.0]).kept, "too slow");
        rows[2] = row("b", STOCK - 1);
        assert!(!promises(&rows, &[4.0]).kept, "one was not sold");
    }
}
