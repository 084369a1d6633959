//! The lanes that lead to a connection: of each kind one statement is under way, all who come meanwhile share the next.

use std::sync::Arc;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::kit::lane::{self, Carry, Lane};
use tokio::runtime::Handle;

use super::NAME;
use super::alone::{Left, Take, Taken};
use super::line::{LOOKS_MAX, Mark, Seen};

/// The most locks taken or given back by one statement, so that no packet grows beyond what servers accept.
const TAKES_MAX: usize = 500;
/// The most renewals in one statement: few trips, because all of a process's locks must be renewed within a part of
/// their ttl.
const RENEWALS_MAX: usize = 2000;

#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) takes: Lane<Take, Option<Taken>>,
    pub(super) leaves: Lane<Mark, Left>,
    pub(super) looks: Lane<Mark, Seen>,
    pub(super) idle: Lane<Mark, Seen>,
    pub(super) keeps: Lane<Mark, Seen>,
    pub(super) renewals: Lane<Mark, Seen>,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Lanes {
            takes: Lane::new(1, TAKES_MAX),
            leaves: Lane::new(1, TAKES_MAX),
            looks: Lane::new(1, LOOKS_MAX),
            idle: Lane::new(1, TAKES_MAX),
            keeps: Lane::new(1, LOOKS_MAX),
            renewals: Lane::new(1, RENEWALS_MAX),
        }
    }
}

/// Carry one: at once if nobody is under way, else together with whoever else asks now.
pub(super) async fn together<I, A, C>(carrier: C, item: I) -> Result<A>
where
    C: Carry<I, A>,
    I: Send + 'static,
    A: Send + 'static,
{
    let runtime = Handle::try_current().map_err(|_| shutting_down())?;
    lane::ask_here(&Arc::new(carrier), &runtime, item).await.unwrap_or_else(|| Err(shutting_down()))
}

/// The same for what is in no hurry: also the first waits until everybody who is about to ask has joined.
pub(super) async fn gathered<I, A, C>(carrier: C, item: I) -> Result<A>
where
    C: Carry<I, A>,
    I: Send + 'static,
    A: Send + 'static,
{
    let runtime = Handle::try_current().map_err(|_| shutting_down())?;
    lane::ask(&Arc::new(carrier), &runtime, item).await.unwrap_or_else(|| Err(shutting_down()))
}

fn shutting_down() -> Fault {
    Fault::transient(NAME, "asking the server", "the runtime is shutting down")
}
