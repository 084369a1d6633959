//! The page: a table for each kind of growth, and in words what grows faster than it must.

use std::fmt::Write as _;
use std::path::Path;

use super::sheet::Sheet;
use super::{Spans, plot};
use crate::Answer;
use crate::site::Store;

pub(super) struct Page {
    pub(super) sheets: Vec<Sheet>,
    /// Nothing was grown beyond this.
    pub(super) most: usize,
}

/// A hand-off may cost so much more behind a line that is ten times as long.
const FLAT: f64 = 1.25;

impl Page {
    pub(super) fn write(&self, page: &Path, picture: &Path) -> Answer<()> {
        let name = picture.file_name().unwrap_or_default().to_string_lossy().into_owned();
        std::fs::write(picture, plot::draw(&self.sheets))?;
        Ok(std::fs::write(page, self.text(&name))?)
    }

    fn text(&self, picture: &str) -> String {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let mut out = format!(
            "# Growth\n\nWritten by `cargo xtask bench growth`, never by hand: what things cost as their number grows, on one machine ({cores} cores,\n\
             servers on loopback, started for this), up to {}. A cell without a number was not reached: a stage has 25 s to take locks and 20 s to build\n\
             a line, and ends where this process would need more than 8 GB, or where not all that was held could be kept. A line is one process with many\n\
             claims, so it shows what a line costs the store, and not what many processes cost a machine.{}\n\n![Cost against work]({picture})\n",
            self.most,
            self.cut_short()
        );
        out += &self.lines();
        out += &self.keeping();
        out += &self.listing();
        out += &self.memory();
        out
    }

    /// What took too long as a whole, in words.
    fn cut_short(&self) -> String {
        let stages = |it: &Sheet| format!("{} ({})", it.store.title(), it.cut_short.join(", "));
        let cut: Vec<String> = self.sheets.iter().filter(|it| !it.cut_short.is_empty()).map(stages).collect();
        if cut.is_empty() {
            return String::new();
        }
        let longest = super::stage_max(self.most);
        format!(
            "\nEnded before they were done, because they took longer than {longest:?}: {}.",
            cut.join("; ")
        )
    }

    /// Hand-offs against the length of the line.
    fn lines(&self) -> String {
        let sizes: Vec<String> = self.sizes(|it| it.lines.iter().map(|it| it.0).collect());
        let mut out = format!(
            "\n## A hand-off, by the number of claims in line\n\nFrom `leave` of the holder until the next knows that it holds: median of 40, in microseconds. One process stands for all \
             claims.\n\n{}",
            head("store", &sizes)
        );
        for sheet in &self.sheets {
            let cells = sheet.lines.iter().map(|it| it.1.map_or("–".to_owned(), |it| format!("{it:.0}")));
            row(&mut out, sheet.store.title(), cells);
        }
        let growing: Vec<String> = self.sheets.iter().filter_map(grows).collect();
        let said = if growing.is_empty() {
            "No store's hand-off grows with its line by more than a quarter for ten times the length."
                .to_owned()
        } else {
            format!("Grows by more than a quarter for ten times the length: {}.", growing.join("; "))
        };
        let _ = writeln!(out, "\n{said}");
        out
    }

    /// Requests and processor time to keep what is held.
    fn keeping(&self) -> String {
        let sizes = self.held_sizes();
        let mut out = format!(
            "\n## Keeping what is held\n\nRequests per second · share of a core in this process + in the server, with a ttl of {:?} (each is renewed every {:?}). \
             All locks were valid at the end unless a cell says otherwise.\n\n{}",
            Spans::held(self.most).ttl,
            Spans::held(self.most).watch,
            head("store", &sizes)
        );
        for sheet in &self.sheets {
            let cells = sheet.held.iter().map(|it| {
                let lost = it.locks - it.valid;
                let lost = if lost == 0 { String::new() } else { format!(" · **{lost} lost**") };
                let requests = if sheet.store == Store::Sqlite {
                    "–".to_owned()
                } else {
                    format!("{:.1}", it.requests)
                };
                format!("{requests} · {:.1} + {:.1} %{lost}", it.busy.0 * 100.0, it.busy.1 * 100.0)
            });
            row(&mut out, sheet.store.title(), cells);
        }
        let _ = writeln!(out, "\nA request is what the server counts: {}.", self.requests());
        out
    }

    fn requests(&self) -> String {
        let all: Vec<String> =
            self.sheets.iter().map(|it| format!("{} {}", it.store.title(), it.store.requests())).collect();
        all.join(", ")
    }

    fn listing(&self) -> String {
        let mut out = format!(
            "\n## Listing, by the number of locks held\n\n`ls` of everything, in milliseconds · microseconds for each lock.\n\n{}",
            head("store", &self.held_sizes())
        );
        for sheet in &self.sheets {
            let cells = sheet.held.iter().map(|it| {
                let missing = it.locks.saturating_sub(it.listed);
                let missing = if missing == 0 { String::new() } else { format!(" · **{missing} missing**") };
                let micros = it.list.as_secs_f64() * 1e6;
                format!(
                    "{:.0} · {:.1}{missing}",
                    micros / 1e3,
                    micros / crate::measure::per(it.locks as u64, 1)
                )
            });
            row(&mut out, sheet.store.title(), cells);
        }
        out
    }

    /// Bytes for each key by what it is, and what those cost who only wait.
    fn memory(&self) -> String {
        let mut out = format!(
            "\n## Memory, and those who only wait\n\nBytes for each key, here (by what this process has in memory) and in the store (Redis: what it says it uses; SQLite: its files; PostgreSQL: its database; \
             else what the server's process has in memory, which does not always grow with what is kept): held, with the most locks of the tables above and after a round of renewals; waited for, beside its holder; idle (a warm lock). The last two columns: \
             requests per second of so many names that one process holds, and what it is more when another waits for all of them, with a ttl of {:?}.\n\n\
             | store | held: client | held: store | waiting: client | waiting: store | idle: client | idle: store | names | their holders | those who wait |\n|---|---|---|---|---|---|---|---|---|---|\n",
            Spans::waiting(self.most).ttl
        );
        for sheet in &self.sheets {
            let known = |it: Option<f64>| it.map_or_else(|| "–".to_owned(), |it| format!("{it:.0}"));
            let rate = |it: Option<f64>| it.map_or_else(|| "–".to_owned(), |it| format!("{it:.1}"));
            let held = sheet.held.last().map(|it| it.bytes);
            let (waits, idle) = (sheet.waiting.as_ref(), sheet.idle.as_ref().map(|it| it.bytes));
            let waiting = waits.map(|it| it.bytes);
            let asked = waits.filter(|_| sheet.store != Store::Sqlite);
            let bytes = [held, waiting, idle].into_iter();
            let bytes = bytes.flat_map(|it| [known(it.map(|it| it.0)), known(it.map(|it| it.1))]);
            let names = waits.map_or_else(|| "–".to_owned(), |it| it.names.to_string());
            let rates = [rate(asked.map(|it| it.holders)), rate(asked.map(|it| it.requests))];
            row(&mut out, sheet.store.title(), bytes.chain([names]).chain(rates));
        }
        out
    }

    fn held_sizes(&self) -> Vec<String> {
        self.sizes(|it| it.held.iter().map(|it| it.locks).collect())
    }

    /// The sizes of whoever came farthest.
    fn sizes(&self, of: impl Fn(&Sheet) -> Vec<usize>) -> Vec<String> {
        let longest = self.sheets.iter().map(of).max_by_key(Vec::len).unwrap_or_default();
        longest.iter().map(ToString::to_string).collect()
    }
}

/// Where a hand-off grows with the line, in words.
fn grows(sheet: &Sheet) -> Option<String> {
    let known: Vec<(usize, f64)> = sheet.lines.iter().filter_map(|it| Some((it.0, it.1?))).collect();
    let steep = known.windows(2).filter(|it| FLAT < it[1].1 / it[0].1);
    let said: Vec<String> =
        steep.map(|it| format!("{:.2} × from {} to {}", it[1].1 / it[0].1, it[0].0, it[1].0)).collect();
    (!said.is_empty()).then(|| format!("{} ({})", sheet.store.title(), said.join(", ")))
}

fn head(first: &str, columns: &[String]) -> String {
    format!("| {first} | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()))
}

fn row(out: &mut String, title: &str, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.collect();
    let _ = writeln!(out, "| {title} | {} |", cells.join(" | "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_with_the_line_is_named_and_what_stays_flat_is_not() {
        let sheet = |lines| Sheet { lines, ..Sheet::of(Store::Redis) };
        assert_eq!(grows(&sheet(vec![(1, Some(100.0)), (10, Some(110.0)), (100, None)])), None);
        let steep = grows(&sheet(vec![(1, Some(100.0)), (10, Some(110.0)), (100, Some(330.0))]));
        assert_eq!(steep.as_deref(), Some("Redis (3.00 × from 10 to 100)"));
    }

    #[test]
    fn what_took_too_long_is_named_and_what_is_known_of_it_stays() {
        let mut page = Page { sheets: vec![Sheet::of(Store::Redis)], most: 1000 };
        assert_eq!(page.cut_short(), "");
        page.sheets[0].read("line 1 41.75").unwrap();
        page.sheets[0].read("cut-short line").unwrap();
        let text = page.text("growth.svg");
        assert!(text.contains("Redis (line).") && text.contains("| Redis | 42 |"), "{text}");
    }
}
