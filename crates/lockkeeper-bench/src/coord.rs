//! etcd and ZooKeeper beside bare requests on the same client, and beside the lock that the server or the client crate
//! offers; on one server and on three.

mod etcd;
mod hand_off;
mod zookeeper;

use lockkeeper_core::Locker;

use crate::{Answer, Outcome};
pub(crate) use etcd::ServerLock;
pub(crate) use zookeeper::CrateLock;

pub(crate) fn etcd_alone() -> Outcome {
    block_on(etcd::run(false))
}

pub(crate) fn etcd_of_three() -> Outcome {
    block_on(etcd::run(true))
}

pub(crate) fn zookeeper_alone() -> Outcome {
    block_on(zookeeper::run(false))
}

pub(crate) fn zookeeper_of_three() -> Outcome {
    block_on(zookeeper::run(true))
}

/// On a runtime of several threads, on threads of its own.
async fn on_several<T: Send + 'static, F: Future<Output = Answer<T>>>(
    work: impl FnOnce() -> F + Send + 'static,
) -> Answer<T> {
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    tokio::task::spawn_blocking(move || several.block_on(work())).await?
}

/// Take a free lock and give it back, so many times.
async fn cycles(locker: Locker, count: u32) -> Answer<()> {
    for _ in 0..count {
        locker.lock("one").await?.release().await?;
    }
    Ok(())
}

fn block_on(suite: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(suite)
}
