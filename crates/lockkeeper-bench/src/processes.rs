//! Eight processes add to a number in a plain file, two hundred times each, under one SQLite lock.

use crate::Outcome;
use crate::crowd::{self, Parties, Plan};
use crate::measure::per;
use crate::report::{Bound, Row};

const PROCESSES: usize = 8;
const ROUNDS: usize = 200;

pub(crate) fn run() -> Outcome {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let plan =
        Plan { rival: "ours", url: &url, key: "number", ttl: crowd::TTL, processes: PROCESSES, tasks: 1 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let crowd = runtime.block_on(async { Parties::start(plan).await?.rounds(ROUNDS).await })?.all_served()?;
    let (sum, wanted) = (crowd.sum(), (PROCESSES * ROUNDS) as u64);
    let note = format!(
        "{:.0} rounds/s, {} of {sum} overtook an earlier one, longest wait {:.0?}, Jain index {:.3} while all run",
        crowd.rate(),
        crowd.overtaking(),
        crowd.longest_wait(),
        crowd.jain(),
    );
    Ok(vec![
        Row {
            what: "8 processes × 200 rounds of read, add, write on a plain file under one SQLite lock: the sum",
            ours: sum.to_string(),
            theirs: wanted.to_string(),
            ratio: per(sum, wanted),
            bound: Bound::AtLeast(1.0),
            note,
        },
        Row {
            what: "the same: how evenly the processes are served (Jain index, 1 = even)",
            ours: format!("{:.3}", crowd.jain()),
            theirs: "1".to_owned(),
            ratio: crowd.jain(),
            bound: Bound::AtLeast(0.95),
            note: String::new(),
        },
    ])
}
