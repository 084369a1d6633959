//! How a sale went: the books, the speed, and whether the promise was kept.

use std::time::Duration;

use lockkeeper::spi::Moment;
use serde::Serialize;

use crate::books::Balance;
use crate::console::{COLUMNS, Console};
use crate::instance::Account;
use crate::strategy::Strategy;

/// One row of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) strategy: Strategy,
    stock: u64,
    pub(crate) sold: u64,
    /// Pieces sold that did not exist.
    pub(crate) oversold: u64,
    /// Sales that the stock does not know of: it is larger than what is left after all orders.
    unbooked: u64,
    /// Buyers who were told neither yes nor no.
    failed: u64,
    pub(crate) orders_per_second: f64,
    pub(crate) wait_p50_ms: f64,
    wait_p99_ms: f64,
    /// Questions to the store of locks.
    pub(crate) lock_commands_per_order: f64,
    /// Statements to the database.
    pub(crate) db_statements_per_order: f64,
    /// Why nothing was sold this way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<&'static str>,
    #[serde(skip)]
    gathered: Gathered,
}

#[derive(Debug, Default)]
struct Gathered {
    waits_us: Vec<u64>,
    lock_trips: u64,
    book_trips: u64,
    span: Duration,
}

impl Report {
    pub(crate) fn new(strategy: Strategy, stock: u32) -> Self {
        Report {
            strategy,
            stock: stock.into(),
            sold: 0,
            oversold: 0,
            unbooked: 0,
            failed: 0,
            orders_per_second: 0.0,
            wait_p50_ms: 0.0,
            wait_p99_ms: 0.0,
            lock_commands_per_order: 0.0,
            db_statements_per_order: 0.0,
            left_out: None,
            gathered: Gathered::default(),
        }
    }

    /// A strategy that could not be tried, and why.
    pub(crate) fn left_out(strategy: Strategy, stock: u32, why: &'static str) -> Self {
        Report { left_out: Some(why), ..Report::new(strategy, stock) }
    }

    /// Take in what one instance says.
    pub(crate) fn add(&mut self, account: Account, started: Moment) {
        let Gathered { waits_us, lock_trips, book_trips, span } = &mut self.gathered;
        waits_us.extend(account.waits_us);
        *lock_trips += account.lock_trips;
        *book_trips += account.book_trips;
        *span = (*span).max(Moment::from_nanos(account.last_sale_ns) - started);
        self.failed += account.failed;
    }

    /// Compare with the books.
    pub(crate) fn check(&mut self, balance: &Balance) {
        let gathered = &mut self.gathered;
        self.sold = balance.orders;
        self.oversold = balance.orders.saturating_sub(self.stock);
        let booked = i64::try_from(self.stock).unwrap_or(i64::MAX) - balance.left;
        self.unbooked = balance.orders.abs_diff(u64::try_from(booked).unwrap_or(0));
        gathered.waits_us.sort_unstable();
        self.wait_p50_ms = at(&gathered.waits_us, 50);
        self.wait_p99_ms = at(&gathered.waits_us, 99);
        let orders = as_f64(self.sold.max(1));
        self.lock_commands_per_order = as_f64(gathered.lock_trips) / orders;
        self.db_statements_per_order = as_f64(gathered.book_trips) / orders;
        if !gathered.span.is_zero() {
            self.orders_per_second = as_f64(self.sold) / gathered.span.as_secs_f64();
        }
    }

    /// Whether the books are right: nothing sold that was not there, and every sale booked.
    pub(crate) fn is_right(&self) -> bool {
        self.oversold == 0 && self.unbooked == 0
    }

    fn verdict(&self) -> String {
        if let Some(why) = self.left_out {
            return why.into();
        }
        let wanted = (self.gathered.waits_us.len() as u64).min(self.stock);
        match (self.oversold, self.unbooked) {
            (0, 0) if self.sold < wanted => format!("right, {} left over", wanted - self.sold),
            (0, 0) => "right".into(),
            (0, unbooked) => format!("WRONG: {unbooked} not booked"),
            (oversold, _) => format!("WRONG: {oversold} too many"),
        }
    }

    pub(crate) fn in_a_line(&self) -> String {
        if let Some(why) = self.left_out {
            return format!("{}: {why}", self.strategy.name());
        }
        let (name, sold, speed) = (self.strategy.name(), self.sold, self.orders_per_second);
        format!("{name}: {sold} sold of {}, {speed:.0} orders per second: {}", self.stock, self.verdict())
    }
}

/// All rows.
pub(crate) fn table(reports: &[Report], console: &dyn Console) -> String {
    let heading = [
        "STRATEGY",
        "SOLD",
        "OVERSOLD",
        "FAILED",
        "ORDERS/S",
        "WAIT P50",
        "WAIT P99",
        "LOCK CMDS",
        "DB CMDS",
        "BOOKS",
    ];
    let rows: Vec<_> = reports
        .iter()
        .map(|it| {
            if it.left_out.is_some() {
                let mut row = [(); COLUMNS].map(|()| "-".to_owned());
                (row[0], row[COLUMNS - 1]) = (it.strategy.name().to_owned(), it.verdict());
                return row;
            }
            [
                it.strategy.name().to_owned(),
                it.sold.to_string(),
                it.oversold.to_string(),
                it.failed.to_string(),
                format!("{:.0}", it.orders_per_second),
                format!("{:.0} ms", it.wait_p50_ms),
                format!("{:.0} ms", it.wait_p99_ms),
                format!("{:.2}", it.lock_commands_per_order),
                format!("{:.2}", it.db_statements_per_order),
                it.verdict(),
            ]
        })
        .collect();
    console.table(heading, &rows)
}

/// A percentile in milliseconds.
fn at(sorted_us: &[u64], percent: usize) -> f64 {
    let index = (sorted_us.len() * percent / 100).min(sorted_us.len().saturating_sub(1));
    sorted_us.get(index).map_or(0.0, |it| as_f64(*it) / 1000.0)
}

#[expect(clippy::cast_precision_loss, reason = "nobody reads the seventeenth digit")]
fn as_f64(it: u64) -> f64 {
    it as f64
}
