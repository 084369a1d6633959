//! Whether this process may use the client library: not if it was forked from one that did.
//!
//! The library waits for its sockets on a thread that it starts once and keeps for the whole process. A fork has no such thread and
//! cannot start another, so whatever a child asked for would be waited for without end.

use std::sync::OnceLock;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_fork::Origin;

use crate::fault::NAME;

/// The first process, of this one and its forebears, that used the library.
static USED_IN: OnceLock<Origin> = OnceLock::new();

/// Note that it is used from now on; an error if it was used in a process that this one was forked from.
pub(crate) fn check() -> Result<()> {
    if USED_IN.get_or_init(Origin::here).is_here() {
        return Ok(());
    }
    Err(Fault::permanent(
        NAME,
        "opening a session",
        "this process is a fork of one that used ZooKeeper, and the thread that waits for its connections did not come along; fork \
         before the first connection, or start the child as a program of its own",
    ))
}
