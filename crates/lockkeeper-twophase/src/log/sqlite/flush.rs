//! One flush for many decisions, and what work in the log's own file can do to them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::decide;
use crate::error::BoxError;
use crate::log::{Cause, Decided, Decision};
use crate::observe::{Observer, Point};

/// Work in the log's own file, done by the commit that decides.
pub(crate) type Inside = Box<dyn FnOnce(&Connection) -> std::result::Result<(), BoxError> + Send>;

/// A decision, and the epoch of the seat in which it is made.
pub(super) struct Wanted {
    pub(super) record: Decision,
    pub(super) fence: u64,
    pub(super) inside: Option<Inside>,
    pub(super) told: oneshot::Sender<Decided>,
}

/// One transaction and one flush for all that wait, unless somebody's work ends it: then one more for the others.
pub(super) fn decide_all(connection: &mut Connection, decisions: Vec<Wanted>, observer: &Observer) {
    let mut waiting = decisions.into_iter().peekable();
    while waiting.peek().is_some() {
        decide_some(connection, &mut waiting, observer);
    }
}

/// Each is checked for itself.
fn decide_some(connection: &mut Connection, waiting: &mut impl Iterator<Item = Wanted>, observer: &Observer) {
    let writing = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Ok(writing) => writing,
        Err(error) => {
            let error: Cause = Arc::new(error);
            return waiting.for_each(|it| drop(it.told.send(Decided::Failed(error.clone()))));
        }
    };
    let (mut written, mut broken) = (Vec::new(), None);
    for Wanted { record, fence, inside, told } in waiting {
        match decide_one(&writing, &record, fence, inside) {
            One::Written => {
                observer.tell(Point::Deciding, Some(&record.id), None);
                written.push(told);
            }
            One::Stale => drop(told.send(Decided::Stale)),
            One::Failed(error) => drop(told.send(Decided::Failed(Arc::from(error)))),
            One::Ended(error) => {
                written.push(told);
                broken = Some(Arc::from(error));
                break;
            }
        }
    }
    let failed = match broken {
        Some(error) => {
            // What the work began anew is not ours. Dropped, it is rolled back if there is one.
            drop(writing);
            Some(error)
        }
        // A flush that failed may have reached the disk.
        None => writing.commit().err().map(|it| Arc::new(it) as Cause),
    };
    for told in written {
        drop(told.send(failed.clone().map_or(Decided::Written, Decided::Unsure)));
    }
}

/// What became of one decision among many.
enum One {
    Written,
    /// Only the newest holder of the seat may.
    Stale,
    /// Nothing of it is left.
    Failed(BoxError),
    /// The transaction is over, in which others were written, too: committed or rolled back, the log tells.
    Ended(BoxError),
}

/// One decision, and the work that comes with it: if that fails, nothing of it is left.
fn decide_one(writing: &Transaction<'_>, record: &Decision, fence: u64, inside: Option<Inside>) -> One {
    let judge = |done: std::result::Result<bool, BoxError>| match done {
        Ok(true) => One::Written,
        Ok(false) => One::Stale,
        Err(error) => One::Failed(error),
    };
    let Some(work) = inside else { return judge(decide(writing, record, fence).map_err(BoxError::from)) };
    if let Err(error) = writing.execute_batch("SAVEPOINT lockkeeper_2pc_inside") {
        return One::Failed(error.into());
    }
    let done = decide(writing, record, fence).map_err(BoxError::from).and_then(|it| {
        if it {
            // This thread serves others, too.
            catch_unwind(AssertUnwindSafe(|| work(writing))).unwrap_or_else(|it| Err(panicked(&*it)))?;
        }
        Ok(it)
    });
    let end = if matches!(done, Ok(true)) { "" } else { "ROLLBACK TO lockkeeper_2pc_inside;" };
    // If the work has ended the transaction, the mark is gone, and this says so.
    match writing.execute_batch(&format!("{end} RELEASE lockkeeper_2pc_inside")) {
        Ok(()) => judge(done),
        Err(error) => One::Ended(done.err().unwrap_or_else(|| error.into())),
    }
}

fn panicked(payload: &(dyn Any + Send)) -> BoxError {
    let text =
        payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    format!("the work in the log panicked: {}", text.unwrap_or("without a text")).into()
}
