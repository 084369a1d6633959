//! etcd and ZooKeeper beside bare requests on the same client, and beside the lock that the server or the client crate
//! offers; on one server and on three.

mod etcd;
mod hand_off;
mod zookeeper;

use crate::Outcome;
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

fn block_on(suite: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(suite)
}
