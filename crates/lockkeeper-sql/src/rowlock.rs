//! Locks on your own rows, without any lock table: what a database already does well.
//!
//! Three ways, from cheap to expensive. One statement that checks and changes at once (`take`). A version column that
//! refuses a change to what has changed meanwhile ([`Attempts`]). `SELECT … FOR UPDATE`, which makes others
//! wait (`section`). All three are as safe as the database's commit; none needs a lease or a fence.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use lockkeeper_core::Clock;

use crate::retry;

/// How often, and after which pauses, an attempt that lost is repeated.
///
/// ```
/// use lockkeeper_sql::rowlock::Retry;
///
/// let retry = Retry::times(5);
/// assert!(retry.pause_first < retry.pause_max);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Give up after this many attempts.
    pub attempts_max: u32,
    /// About the first pause; each further one is about twice as long, and all are random.
    pub pause_first: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl Retry {
    /// So many attempts, with the pauses of the default.
    #[must_use]
    pub const fn times(attempts_max: u32) -> Self {
        Retry { attempts_max, pause_first: Duration::from_millis(1), pause_max: Duration::from_millis(100) }
    }
}

impl Default for Retry {
    /// Thirty attempts, pauses from a millisecond to a tenth of a second.
    fn default() -> Self {
        Retry::times(30)
    }
}

/// Versioned compare-and-set: the attempts to change a row that others change as well.
///
/// Read the row with its version, decide, and write with `… WHERE id = ? AND version = ?`. If that changed no
/// row, somebody got in between: say so by [`Attempts::lost`] and begin again.
///
/// ```
/// # use lockkeeper_sql::rowlock::{Attempts, Contended, Retry};
/// # async fn read() -> (i64, i64) { (1, 1) }
/// # async fn write(amount: i64, version: i64) -> u64 { 1 }
/// # async fn buy() -> Result<u32, Contended> {
/// let mut attempts = Attempts::new(Retry::default());
/// loop {
///     let (amount, version) = read().await;
///     if write(amount - 1, version).await == 1 {
///         return Ok(attempts.retries());
///     }
///     attempts.lost().await?;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Attempts {
    retry: Retry,
    lost: u32,
    clock: Clock,
}

impl Attempts {
    /// No attempt made yet.
    pub fn new(retry: Retry) -> Self {
        Attempts { retry, lost: 0, clock: Clock::boot() }
    }

    /// How many attempts lost so far.
    pub fn retries(&self) -> u32 {
        self.lost
    }

    /// An attempt lost against others: pause for a random while.
    ///
    /// # Cancel safety
    /// Safe to drop; nothing is held.
    ///
    /// # Errors
    /// [`Contended`] if that was the last attempt allowed.
    pub async fn lost(&mut self) -> Result<(), Contended> {
        self.lost += 1;
        if self.retry.attempts_max <= self.lost {
            return Err(Contended { attempts: self.lost });
        }
        let pause = retry::pause(self.lost - 1, self.retry.pause_first, self.retry.pause_max);
        self.clock.sleep(pause).await;
        Ok(())
    }
}

/// All attempts lost against others. Shed load, or take a lock before.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_sql::rowlock::{Attempts, Contended, Retry};
///
/// let mut attempts = Attempts::new(Retry::times(1));
/// assert_eq!(attempts.lost().await.map_err(|it: Contended| it.attempts), Err(1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("others changed the row in each of {attempts} attempts; shed load, or wait for a lock before")]
#[non_exhaustive]
pub struct Contended {
    /// How many were made.
    pub attempts: u32,
}

/// As `Display`, because that is what a `main` that returns an error prints.
impl fmt::Debug for Contended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a row could not be changed.
///
/// ```
/// use lockkeeper_sql::rowlock::{Column, RowError};
///
/// let error = Column::new::<std::io::Error>("stock; DROP TABLE stock", "id", "amount").unwrap_err();
/// assert!(matches!(error, RowError::BadName { .. }));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RowError<E> {
    /// Others held the row longer than we may wait.
    #[error("the row stayed locked by others for longer than {} s", .waited.as_secs_f64())]
    #[non_exhaustive]
    TimedOut {
        /// How long we may wait.
        waited: Duration,
    },
    /// A name that may not stand in SQL.
    #[error("{name:?} is no plain column or table name; use small letters, digits and `_`")]
    #[non_exhaustive]
    BadName {
        /// The name.
        name: String,
    },
    /// The database said no.
    #[error(transparent)]
    Database(E),
}

impl<E> RowError<E> {
    /// Others held the row for longer than this: for tests of what you do then.
    pub fn timed_out(waited: Duration) -> Self {
        RowError::TimedOut { waited }
    }
}

/// As `Display`, because that is what a `main` that returns an error prints. The database's own error is shown in its own way.
impl<E: fmt::Debug> fmt::Debug for RowError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said: RowError<Infallible> = match self {
            RowError::Database(it) => return fmt::Debug::fmt(it, f),
            RowError::TimedOut { waited } => RowError::TimedOut { waited: *waited },
            RowError::BadName { name } => RowError::BadName { name: name.clone() },
        };
        fmt::Display::fmt(&said, f)
    }
}

/// A column of a table of yours that counts something, such as stock, and the column that names its rows.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_sql::rowlock::RowError<std::io::Error>> {
/// use lockkeeper_sql::rowlock::Column;
///
/// let stock = Column::new::<std::io::Error>("shop.stock", "id", "amount")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    table: String,
    key: String,
    amount: String,
}

impl Column {
    /// The column `amount` of `table`, whose rows are named by the column `key`.
    ///
    /// # Errors
    /// [`RowError::BadName`] unless all names consist of small letters, digits and `_`; a table may have its
    /// schema before it, with a dot.
    pub fn new<E>(table: &str, key: &str, amount: &str) -> Result<Self, RowError<E>> {
        let is_plain = crate::options::is_plain_name;
        let good = |it: &str| it.split('.').count() <= 2 && it.split('.').all(is_plain);
        for name in [key, amount] {
            if !is_plain(name) {
                return Err(RowError::BadName { name: name.to_owned() });
            }
        }
        if !good(table) {
            return Err(RowError::BadName { name: table.to_owned() });
        }
        let (table, key, amount) = (table.to_owned(), key.to_owned(), amount.to_owned());
        Ok(Column { table, key, amount })
    }

    /// `UPDATE … SET amount = amount - count WHERE key = key AND amount >= count`, with these placeholders.
    pub(crate) fn take_sql(&self, count: &str, key: &str) -> String {
        let Column { table, key: key_column, amount } = self;
        format!(
            "UPDATE {table} SET {amount} = {amount} - {count} WHERE {key_column} = {key} AND {amount} >= {count}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Never = std::convert::Infallible;

    #[tokio::test]
    async fn losing_is_counted_and_bounded() {
        let mut attempts = Attempts::new(Retry::times(3));
        assert_eq!(attempts.lost().await, Ok(()));
        assert_eq!(attempts.lost().await, Ok(()));
        assert_eq!(attempts.retries(), 2);
        assert_eq!(attempts.lost().await, Err(Contended { attempts: 3 }));
    }

    #[test]
    fn only_plain_names_come_into_sql() {
        let column = Column::new::<Never>("shop.stock", "id", "left_over").unwrap();
        let sql = "UPDATE shop.stock SET left_over = left_over - $1 WHERE id = $2 AND left_over >= $1";
        assert_eq!(column.take_sql("$1", "$2"), sql);
        for (table, key, amount) in
            [("a;b", "id", "n"), ("a", "i d", "n"), ("a", "id", "N"), ("a.b.c", "id", "n")]
        {
            assert!(matches!(Column::new::<Never>(table, key, amount), Err(RowError::BadName { .. })));
        }
    }
}
