//! Locks that live as long as a connection of yours: `GET_LOCK`.
//!
//! They are not locks of a [`Locker`](lockkeeper_core::Locker) and do not exclude them. Know their traps:
//!
//! * They end with the connection, not with the transaction. A connection that the server closes (`wait_timeout`,
//!   `KILL`, restart, failover) frees the lock at once, and the holder learns of it at its next statement. What
//!   it wrote outside that connection may already race with the next holder.
//! * A pool may give the connection to somebody else with the lock still held. A proxy that shares connections
//!   (such as `ProxySQL`) breaks them.
//! * They are not replicated, unknown to replicas, and refused or local to one node on Galera.
//! * Names are folded by MySQL 8 and cut at a NUL by MariaDB, at most 64 characters long. We hash them.
//! * They have no fence, and any user of the server can take any of them.

use std::time::Duration;

use lockkeeper_core::Key;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::text::bytes;
use crate::name::hash;

/// The name under which a key is locked: two letters of ours and as many digits of its hash as fit.
fn name(key: &Key) -> String {
    let literal = bytes(&hash(key));
    format!("lk{}", &literal[2..62])
}

/// Run `work` while this connection holds the name; `None` if it was not ours within `wait`.
///
/// The lock is given back when `work` ends, also if it fails. The server counts the wait in whole seconds, so it
/// is rounded up; a wait of zero answers at once.
///
/// ```no_run
/// # use std::time::Duration;
/// # use lockkeeper_core::Key;
/// # use lockkeeper_sql::mysql::named::with_named_lock;
/// # use mysql_async::prelude::Queryable;
/// # async fn example(conn: &mut mysql_async::Conn, key: &Key) -> Result<(), mysql_async::Error> {
/// let done = with_named_lock(conn, key, Duration::from_secs(1), async |conn| {
///     conn.query_drop("INSERT INTO reports VALUES (CURRENT_DATE)").await
/// })
/// .await?;
/// if done.is_none() {
///     println!("somebody else is at it");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// If dropped, close the connection: that frees the lock, and the driver cannot go on with it anyway.
///
/// # Errors
/// The error of `work`, or the driver's. After a driver's error the lock is to be taken for lost.
pub async fn with_named_lock<T>(
    conn: &mut Conn,
    key: &Key,
    wait: Duration,
    work: impl AsyncFnOnce(&mut Conn) -> Result<T, mysql_async::Error>,
) -> Result<Option<T>, mysql_async::Error> {
    let (name, seconds) = (name(key), wait.as_secs() + u64::from(0 < wait.subsec_nanos()));
    // A negative time would wait for ever on one server and fail on the other.
    let seconds = seconds.min(1_000_000);
    let taken: Option<Option<i64>> =
        conn.query_first(format!("SELECT GET_LOCK('{name}', {seconds})")).await?;
    if taken.flatten() != Some(1) {
        return Ok(None);
    }
    let done = work(conn).await;
    let freed = conn.query_drop(format!("DO RELEASE_LOCK('{name}')")).await;
    let value = done?;
    freed?;
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_and_does_not_depend_on_case() {
        let (one, other) = (name(&Key::new("Order").unwrap()), name(&Key::new("order").unwrap()));
        assert!(one.len() <= 64 && one != other);
        assert_eq!(one, one.to_lowercase());
    }
}
