//! One look at a seat: what its participants have prepared beside what the log says, and an order for each branch.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use lockkeeper_core::kit::locked;
use tokio::task::JoinSet;

use crate::error::Result;
use crate::id::{BranchName, TransactionId};
use crate::log::{Decision, Ruling};
use crate::observe::Point;
use crate::office::Desk;
use crate::participant::{ANSWER_MAX, Order, Session, Settled, Trouble, timed};
use crate::phases::{beyond_doubt, note_damage};
use crate::recover::Left;
use crate::witnesses;

/// Orders that are given before anybody looks what became of them, and that are worth a connection of their own.
const TOGETHER: usize = 16;

/// One session at each participant that answers.
pub(crate) type Sessions = BTreeMap<String, Session>;

/// Finish what belongs to this seat and to epochs before `fence`; with `own` also what this office itself left in its own.
pub(crate) async fn sweep(desk: &Arc<Desk>, (seat, fence): (u32, u64), own: bool) -> Result<Vec<Left>> {
    let (prepared, mut sessions, mut left) = list(desk).await;
    left.extend(desk.unnamed().await?);
    let ours = |id: &TransactionId| {
        let epoch = if own { id.fence() <= fence } else { id.fence() < fence };
        id.log() == desk.log.id.0 && id.seat() == seat && epoch && !desk.is_active(id)
    };
    let prepared: Vec<BranchName> = prepared.into_iter().filter(|it| ours(&it.id)).collect();
    desk.observer.tell(Point::Listed, None, None);
    // After the list: a branch that is prepared now and has no row here can get none any more.
    let mut rows = desk.log.unfinished(Some(seat)).await?;
    rows.retain(|it| ours(&it.id));
    let (finished, restored) = ruled(desk, fence, &rows, &prepared, &mut sessions).await?;
    rows.extend(restored);
    let (undone, mut sessions) = give(desk, orders(&rows, &finished, &prepared), sessions).await?;
    let open: HashSet<&TransactionId> = undone.iter().filter_map(|it| it.id.as_ref()).collect();
    let over: Vec<TransactionId> =
        rows.iter().filter(|it| !open.contains(&it.id)).map(|it| it.id.clone()).collect();
    for id in &over {
        desk.observer.tell(Point::AllCommitted, Some(id), None);
    }
    if !over.is_empty() {
        desk.log.finish_all(&over).await?;
    }
    left.extend(undone);
    witnesses::forget(desk, &mut sessions, seat, &ours).await;
    desk.observer.tell(Point::SeatFinished, None, None);
    Ok(left)
}

/// What is ruled about transactions that the list of the unfinished does not name: finished since it was made, or never decided.
/// Those are ruled now, before the first branch is rolled back: another may be out of reach, and a person who rules by hand
/// then must not take it for all that there is. And those that were decided, as somebody's witness proves: the log has lost them.
async fn ruled(
    desk: &Desk,
    fence: u64,
    rows: &[Decision],
    prepared: &[BranchName],
    sessions: &mut Sessions,
) -> Result<(HashMap<TransactionId, Decision>, Vec<Decision>)> {
    let known: HashSet<&TransactionId> = rows.iter().map(|it| &it.id).collect();
    let others: BTreeSet<&TransactionId> =
        prepared.iter().map(|it| &it.id).filter(|it| !known.contains(it)).collect();
    let others: Vec<TransactionId> = others.into_iter().cloned().collect();
    let mut found = desk.log.looks(others.clone()).await?;
    let mut undecided: Vec<TransactionId> = others.into_iter().filter(|it| !found.contains_key(it)).collect();
    let restored = witnesses::restore(desk, fence, &undecided, prepared, sessions).await?;
    undecided.retain(|it| !restored.iter().any(|row| row.id == *it));
    found.extend(desk.log.rule_abort_all(undecided).await?);
    Ok((found, restored))
}

/// One order for each branch: for those that the log names, and for those that are prepared and that it does not name.
fn orders(
    rows: &[Decision],
    finished: &HashMap<TransactionId, Decision>,
    prepared: &[BranchName],
) -> Vec<Order> {
    let (mut orders, mut ordered) = (Vec::new(), HashSet::new());
    for row in rows {
        for it in &row.branches {
            let branch = BranchName { id: row.id.clone(), n: it.n, participant: it.participant.clone() };
            ordered.insert(branch.clone());
            orders.push(Order { branch, ruling: row.ruling, proof: it.proof.clone() });
        }
    }
    let rows: HashMap<&TransactionId, &Decision> = rows.iter().map(|it| (&it.id, it)).collect();
    for branch in prepared.iter().filter(|it| !ordered.contains(it)) {
        let row = rows.get(&branch.id).copied().or_else(|| finished.get(&branch.id));
        // No row, no commit. A ruling to abort that was made in doubt names no branch.
        let ruling = row.map_or(Ruling::Abort, |it| it.ruling);
        let named = row.and_then(|row| row.branches.iter().find(|it| it.n == branch.n));
        let proof = named.and_then(|it| it.proof.clone());
        orders.push(Order { branch: branch.clone(), ruling, proof });
    }
    orders
}

/// Every branch with a name of ours, at every participant that answers, all at once; and who does not.
async fn list(desk: &Arc<Desk>) -> (Vec<BranchName>, Sessions, Vec<Left>) {
    let mut asked = JoinSet::new();
    for name in desk.participants.keys().cloned() {
        let desk = desk.clone();
        let handle = desk.handle.clone();
        let ask = async move {
            let listed = async {
                let mut session = desk.connect_to_recover(&name).await.map_err(|it| it.to_string())?;
                let listed = timed(ANSWER_MAX, session.list()).await.map_err(|it| it.to_string())?;
                Ok::<_, String>((listed, session))
            };
            (listed.await, name)
        };
        asked.spawn_on(ask, &handle);
    }
    let (mut all, mut sessions, mut left) = (Vec::new(), Sessions::new(), Vec::new());
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok((Ok((found, session)), name)) => {
                // Two databases of one server see each other's branches.
                all.extend(found.into_iter().filter(|it| it.participant == name));
                sessions.insert(name, session);
            }
            Ok((Err(why), participant)) => left.push(Left { id: None, participant, why }),
            Err(error) => left.push(ended(&error)),
        }
    }
    (all, sessions, left)
}

fn ended(error: &tokio::task::JoinError) -> Left {
    Left { id: None, participant: String::from("the office's runtime"), why: error.to_string() }
}

/// Give every order, at all participants at once and over several connections where there are many. What was not followed,
/// and a session for each participant that still has one.
async fn give(desk: &Arc<Desk>, orders: Vec<Order>, mut sessions: Sessions) -> Result<(Vec<Left>, Sessions)> {
    let mut by_participant: BTreeMap<String, VecDeque<Order>> = BTreeMap::new();
    for it in orders {
        by_participant.entry(it.branch.participant.clone()).or_default().push_back(it);
    }
    let mut crew = JoinSet::new();
    for (name, orders) in by_participant {
        let links = orders.len().div_ceil(TOGETHER).min(desk.connections);
        let queue = Arc::new(Mutex::new(orders));
        let mut first = sessions.remove(&name);
        for _ in 0..links {
            let work = work(desk.clone(), name.clone(), queue.clone(), first.take());
            crew.spawn_on(work, &desk.handle);
        }
    }
    let mut left = Vec::new();
    while let Some(worked) = crew.join_next().await {
        match worked {
            Ok(worked) => {
                let (some, name, session) = worked?;
                left.extend(some);
                sessions.extend(session.map(|it| (name, it)));
            }
            Err(error) => left.push(ended(&error)),
        }
    }
    Ok((left, sessions))
}

type Worked = (Vec<Left>, String, Option<Session>);

/// One connection: take some orders, give them, look what became of them, until there are none.
async fn work(
    desk: Arc<Desk>,
    name: String,
    queue: Arc<Mutex<VecDeque<Order>>>,
    mut session: Option<Session>,
) -> Result<Worked> {
    let mut left = Vec::new();
    loop {
        let some: Vec<Order> = {
            let mut queue = locked(&queue);
            let count = queue.len().min(TOGETHER);
            queue.drain(..count).collect()
        };
        if some.is_empty() {
            return Ok((left, name, session));
        }
        let mut link = match session.take() {
            Some(link) => link,
            None => match desk.connect(&name).await {
                Ok(link) => link,
                Err(error) => {
                    // Nor would it answer the next ones.
                    let rest = std::mem::take(&mut *locked(&queue));
                    let why = error.to_string();
                    left.extend(some.iter().chain(&rest).map(|it| it.left(why.clone())));
                    return Ok((left, name, None));
                }
            },
        };
        let settled = link.settle_all(&some).await;
        let usable = settled.iter().all(Result::is_ok);
        for (order, settled) in some.iter().zip(settled) {
            left.extend(judge(&desk, order, settled).await?);
        }
        session = usable.then_some(link);
    }
}

/// Tell what became of an order, and keep what must be kept of it. What is left of it, if it was not followed.
async fn judge(desk: &Desk, order: &Order, settled: Result<Settled, Trouble>) -> Result<Option<Left>> {
    let branch = &order.branch;
    let settled = match settled {
        Ok(settled) => beyond_doubt(desk, branch, order.ruling, settled).await?,
        Err(error) => Settled::Pending(error.to_string()),
    };
    match settled {
        Settled::Done => {
            desk.observer.tell(Point::Recovered, Some(&branch.id), Some(&branch.participant));
            Ok(None)
        }
        Settled::Damaged(found) => {
            note_damage(desk, &branch.id, &branch.participant, order.ruling, &found).await?;
            Ok(None)
        }
        Settled::Pending(why) => Ok(Some(order.left(why))),
    }
}

impl Order {
    fn left(&self, why: String) -> Left {
        Left { id: Some(self.branch.id.clone()), participant: self.branch.participant.clone(), why }
    }
}
