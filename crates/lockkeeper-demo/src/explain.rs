//! What the table says, in words: what went wrong, what was right, and why the speeds are as they are.

use crate::report::Report;
use crate::strategy::Strategy;

const PAGE: &str = "https://github.com/lockkeeper/lockkeeper/blob/main/docs/guides/flash-sale.md";

/// A few sentences, one per line.
pub(crate) fn lines(reports: &[Report]) -> Vec<String> {
    let sold: Vec<&Report> = reports.iter().filter(|it| it.left_out.is_none()).collect();
    let mut lines = Vec::new();
    lines.extend(find(&sold, Strategy::NoLock).map(careless));
    let promised: Vec<&&Report> = sold.iter().filter(|it| it.strategy.promises()).collect();
    let wrong: Vec<&str> = promised.iter().filter(|it| !it.is_right()).map(|it| it.strategy.name()).collect();
    if !wrong.is_empty() {
        lines.push(format!("WRONG although they promise otherwise: {}. Please report it", wrong.join(", ")));
    } else if !promised.is_empty() {
        lines.push("every strategy with a lock or a check sold no piece twice, and booked every sale".into());
    }
    lines.extend(beaten(&sold));
    lines.extend(trips(&sold));
    lines.push(format!("what each strategy does, and what makes the comparison fair: {PAGE}"));
    lines
}

fn find<'a>(reports: &[&'a Report], strategy: Strategy) -> Option<&'a Report> {
    reports.iter().find(|it| it.strategy == strategy).copied()
}

fn careless(report: &Report) -> String {
    if report.is_right() {
        return "no-lock was right by luck: with more --buyers, sellers read the same stock and both sell it"
            .into();
    }
    let what = match report.oversold {
        0 => "sales are missing in the stock".to_owned(),
        count => format!("{count} pieces were sold that do not exist"),
    };
    format!("no-lock: {what}, because two sellers read the same stock before either wrote it back")
}

/// Why a lock may be slower than the database alone.
fn beaten(reports: &[&Report]) -> Option<String> {
    let ours = find(reports, Strategy::Lockkeeper)?;
    let alone = [Strategy::OneStatement, Strategy::Pessimistic, Strategy::Optimistic];
    let faster = alone
        .iter()
        .filter_map(|it| find(reports, *it))
        .filter(|it| ours.orders_per_second < it.orders_per_second)
        .max_by(|one, other| one.orders_per_second.total_cmp(&other.orders_per_second))?;
    Some(format!(
        "{} is faster than lockkeeper ({:.0} and {:.0} orders per second): where one statement or transaction of the \
         same database is enough, take it. A lock is for what does not fit into one: several systems, files, slow steps",
        faster.strategy.name(),
        faster.orders_per_second,
        ours.orders_per_second
    ))
}

/// What is left of the store's work if a lock is handed on inside a process.
fn trips(reports: &[&Report]) -> Option<String> {
    let ours = find(reports, Strategy::Lockkeeper)?;
    let others: Vec<String> = [Strategy::TwoTier, Strategy::PlainLock]
        .iter()
        .filter_map(|it| find(reports, *it))
        .map(|it| format!("{} {:.2}", it.strategy.name(), it.lock_commands_per_order))
        .collect();
    let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    Some(format!(
        "lockkeeper asked the store of locks {:.2} times for each order{others}: the lock is handed on inside a process \
         without asking",
        ours.lock_commands_per_order
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(strategy: Strategy, sold: u64, speed: f64, commands: f64) -> Report {
        let mut report = Report::new(strategy, 10);
        (report.sold, report.oversold) = (sold, sold.saturating_sub(10));
        (report.orders_per_second, report.lock_commands_per_order) = (speed, commands);
        report
    }

    #[test]
    fn a_newcomer_is_told_what_the_figures_mean() {
        let reports = [
            report(Strategy::NoLock, 35, 9.0, 0.0),
            report(Strategy::OneStatement, 10, 30.0, 0.0),
            Report::left_out(Strategy::PlainLock, 10, "skipped"),
            report(Strategy::TwoTier, 10, 5.0, 3.0),
            report(Strategy::Lockkeeper, 10, 20.0, 0.25),
        ];
        let said = lines(&reports).join("\n");
        for part in [
            "no-lock: 25 pieces were sold that do not exist",
            "sold no piece twice",
            "one-statement is faster than lockkeeper (30 and 20 orders",
            "0.25 times for each order (two-tier 3.00)",
            "flash-sale.md",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let alone = lines(&reports[4..]).join("\n");
        assert!(!alone.contains("no-lock") && !alone.contains("faster"), "{alone}");
    }

    #[test]
    fn a_broken_promise_is_not_called_right() {
        let said = lines(&[report(Strategy::Lockkeeper, 12, 1.0, 1.0)]).join("\n");
        assert!(said.contains("WRONG although they promise otherwise: lockkeeper"), "{said}");
        let lucky = lines(&[report(Strategy::NoLock, 10, 1.0, 0.0)]).join("\n");
        assert!(lucky.contains("by luck"), "{lucky}");
    }
}
