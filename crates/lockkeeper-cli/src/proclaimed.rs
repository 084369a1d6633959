//! What the leader who holds a lock lets everybody read.

use lockkeeper::spi::LockInfo;
use lockkeeper::{Key, Leader, Load, Locker};
use tokio::task::JoinSet;

/// How many are asked for side by side.
const AT_ONCE: usize = 32;

/// Who leads under the name of this lock; `None` if it is no role, or the store keeps nothing but locks.
pub(crate) async fn of(locker: &Locker, info: &LockInfo) -> Option<Leader> {
    let leads = info.holders.iter().find(|it| it.load == Load::MUTEX)?;
    let leader = locker.leader(&info.key).await.ok().flatten()?;
    // What a leader said whose lock another holds now is not told of that other.
    leads.fence.is_none_or(|it| it == leader.term).then_some(leader)
}

/// The same of each of these.
pub(crate) async fn of_all(locker: &Locker, locks: &[LockInfo]) -> Vec<(Key, Leader)> {
    let mut found = Vec::new();
    for some in locks.chunks(AT_ONCE) {
        let mut asked = JoinSet::new();
        for info in some.iter().cloned() {
            let locker = locker.clone();
            asked.spawn(async move { of(&locker, &info).await.map(|it| (info.key, it)) });
        }
        found.extend(asked.join_all().await.into_iter().flatten());
    }
    found
}
