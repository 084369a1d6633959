//! Two processes that hand one lock to and fro: how long from the release to the other's guard, and what it asks of the
//! server.

use std::time::Duration;

use lockkeeper_core::Locker;

use crate::Answer;
use crate::crowd::{self, Crowd};
use crate::measure::per;
use crate::report::{Bound, Row};
use crate::rival::Ours;

/// How long a crowd runs.
pub(super) const SPAN: Duration = Duration::from_secs(2);

/// Two lockers, as two processes have them.
pub(super) async fn to_and_fro(processes: [Locker; 2]) -> Answer<Crowd> {
    let processes = processes.iter().map(Ours::new).collect();
    crowd::here(processes, 1, "hand-off", SPAN).await?.sound()
}

/// A row of the table: what a guard asks of the server, at most `most` requests, which are there `to_what_end`.
pub(super) fn row(crowd: &Crowd, requests: u64, most: f64, to_what_end: &str) -> Row {
    let what = "hand-off between two processes, requests to the server per guard";
    let mut row = Row::of_number(what, per(requests, crowd.total()), Bound::AtMost(most));
    let median = Duration::from_secs_f64(crowd.hand_on().0 / 1e6);
    row.note = format!("{to_what_end}; {median:.1?} from release to grant");
    row
}
