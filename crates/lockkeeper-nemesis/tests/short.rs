//! A short torture of every store: each with a few faults, so that all of them together stay below three minutes on a quiet
//! machine.

use std::time::Duration;

use lockkeeper_nemesis::{Fault, StoreName, Torture, run};
use lockkeeper_torture::Trouble;

/// What is struck is written here; what is hit and when is up to the seed.
const SEED: u64 = 20_261_116;

fn torture(store: StoreName, faults: &[Fault]) -> Result<(), Trouble> {
    let torture = Torture {
        store,
        program: env!("CARGO_BIN_EXE_lockkeeper-nemesis").into(),
        span: Duration::MAX,
        whole: false,
        seed: SEED,
        faults: Some(faults.to_vec()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let verdict = runtime.block_on(run(&torture, &|_| {}))?;
    let told = format!("{}{}{verdict}", verdict.table(), verdict.complaints(5));
    // By these words `cargo xtask test` knows that asking once more would only hide it.
    assert!(verdict.is_safe(), "A promise was broken\n{told}");
    assert!(verdict.is_kept(), "{told}");
    Ok(())
}

#[test]
fn sqlite() -> Result<(), Trouble> {
    torture(
        StoreName::Sqlite,
        &[Fault::Calm, Fault::ClientKill, Fault::ClientStop, Fault::CancelStorm, Fault::Fork],
    )
}

#[test]
fn redis() -> Result<(), Trouble> {
    torture(
        StoreName::Redis,
        &[
            Fault::Calm,
            Fault::ClientStop,
            Fault::RuntimeDrop,
            Fault::ServerKill,
            Fault::ConnectionsFull,
            Fault::NetDelay,
            Fault::DiskFull,
        ],
    )
}

#[test]
fn sentinel() -> Result<(), Trouble> {
    torture(StoreName::Sentinel, &[Fault::Failover])
}

#[test]
fn cluster() -> Result<(), Trouble> {
    torture(StoreName::Cluster, &[Fault::Failover])
}

#[test]
fn redlock() -> Result<(), Trouble> {
    torture(StoreName::Redlock, &[Fault::ServerForget, Fault::MinorityStop])
}

#[test]
fn postgres() -> Result<(), Trouble> {
    torture(StoreName::Postgres, &[Fault::ServerKill, Fault::NetCut, Fault::ClockForward])
}

#[test]
fn mariadb() -> Result<(), Trouble> {
    torture(StoreName::MariaDb, &[Fault::ServerStop, Fault::ClientKill, Fault::NetDuplicate])
}

#[test]
fn mysql() -> Result<(), Trouble> {
    torture(StoreName::Mysql, &[Fault::NetVanish, Fault::ClockForward])
}

#[test]
fn session_locks_of_postgres() -> Result<(), Trouble> {
    torture(StoreName::PostgresSession, &[Fault::ServerKill, Fault::ClientStop, Fault::ClientKill])
}

#[test]
fn session_locks_of_mariadb() -> Result<(), Trouble> {
    torture(StoreName::MariaDbSession, &[Fault::ServerKill, Fault::ClientStop, Fault::ClientKill])
}

#[test]
fn session_locks_of_mysql() -> Result<(), Trouble> {
    torture(StoreName::MysqlSession, &[Fault::HalfOpen, Fault::ClientKill])
}

#[test]
fn etcd() -> Result<(), Trouble> {
    torture(StoreName::Etcd, &[Fault::Calm, Fault::Failover, Fault::ClientStop, Fault::NetDuplicate])
}

#[test]
fn zookeeper() -> Result<(), Trouble> {
    torture(StoreName::ZooKeeper, &[Fault::Failover, Fault::LeaderParted])
}
