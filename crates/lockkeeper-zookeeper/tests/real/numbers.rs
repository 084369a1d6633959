//! Numbers that lines and fences are made of: at their end, after an election, and when all data are lost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::{Clock, Fence, Locker};
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::quorum::{PATIENCE, Quorum, locker, soon};
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::common::Servers;
use crate::history::{self, Created};

const TTL: Duration = Duration::from_secs(10);
const LEDGER: &str = "/lockkeeper/.fences";

async fn new_process(server: &Server) -> Locker {
    locker(&ZooKeeper::connect(&server.url()).await.unwrap(), TTL)
}

/// Take a lock and give it back.
async fn fence_of(locker: &Locker) -> Fence {
    let guard = soon("the lock", locker.lock("job")).await.unwrap();
    let fence = guard.fence();
    // The answer may be lost with a connection that a fault broke; then the release is repeated.
    let _ = guard.release().await;
    fence
}

/// As if the disk had been replaced.
async fn wipe(server: &Server) {
    server.kill().unwrap();
    std::fs::remove_dir_all(server.folder().join("data/version-2")).unwrap();
    server.start().await.unwrap();
}

#[tokio::test]
async fn fences_grow_also_when_the_server_has_lost_all_its_data() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let living = new_process(&server).await;
    let mut fence = fence_of(&living).await;
    for _ in 0..20 {
        let next = fence_of(&living).await;
        assert!(fence < next);
        fence = next;
    }
    wipe(&server).await;
    let newborn = fence_of(&new_process(&server).await).await;
    assert!(fence < newborn, "a process that has seen nothing: {fence} and then {newborn}");
    let old = fence_of(&living).await;
    assert!(newborn < old, "a process that was there before: {newborn} and then {old}");
    wipe(&server).await;
    let again = fence_of(&living).await;
    assert!(old < again, "{old} and then {again}");
    assert!(again < fence_of(&new_process(&server).await).await);
}

#[tokio::test]
async fn a_process_accepts_no_fence_below_what_it_has_seen() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let living = new_process(&server).await;
    let small = fence_of(&living).await;
    // As if the server's clock had been far ahead when the ledger was written, and set right when all data were lost.
    let operator = Client::connect(&server.address()).await.unwrap();
    let far = small.counter() + (1 << 45);
    let ledger = format!("lockkeeper=1\nnext={far}\n");
    operator.set_data(LEDGER, ledger.as_bytes(), None).await.unwrap();
    let large = fence_of(&living).await;
    assert!(far < large.counter(), "the ledger is believed");
    wipe(&server).await;
    let after = fence_of(&living).await;
    assert!(large < after, "{large} and then {after}");
    let newborn = fence_of(&new_process(&server).await).await;
    assert!(after < newborn, "and neither do others: {after} and then {newborn}");
    // The whole path is removed by hand, while our session goes on.
    let operator = Client::connect(&server.address()).await.unwrap();
    for path in ["/lockkeeper/job", LEDGER, "/lockkeeper"] {
        operator.delete(path, None).await.unwrap();
    }
    let last = fence_of(&living).await;
    assert!(newborn < last, "{newborn} and then {last}");
}

#[tokio::test]
async fn fences_grow_also_when_an_old_copy_of_the_data_was_put_back() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let living = new_process(&server).await;
    let fence = fence_of(&living).await;
    server.kill().unwrap();
    std::fs::remove_dir_all(server.folder().join("data/version-2")).unwrap();
    server.start().await.unwrap();
    let last = last_zxid(&server).await;
    server.kill().unwrap();
    // A path and a ledger as they were in 1970.
    let old = ["/lockkeeper", LEDGER].map(|path| Created { path, owner: 0, number: 1 }.bytes());
    history::append(server.folder(), last + 1, &old);
    server.start().await.unwrap();
    let newborn = fence_of(&new_process(&server).await).await;
    assert!(fence < newborn, "a process that has seen nothing: {fence} and then {newborn}");
    assert!(newborn < fence_of(&living).await);
}

#[tokio::test]
async fn an_election_costs_a_few_counters_and_not_four_thousand_million() {
    let servers = Servers::start(3).await;
    let url = servers.url_of_all(TTL);
    let (here, there) = (servers.locker(TTL).await, locker(&ZooKeeper::connect(&url).await.unwrap(), TTL));
    let (first, second) = (fence_of(&here).await, fence_of(&there).await);
    assert!(first < second);
    let old = eventually(PATIENCE, async || {
        for at in 0..3 {
            if servers.leads(at).await.unwrap_or(false) {
                return Ok(at);
            }
        }
        Err(KitError::new("nobody leads"))
    });
    servers.nodes()[old.await.unwrap()].kill().unwrap();
    let (third, fourth) = (fence_of(&there).await, fence_of(&here).await);
    assert!(second < third && third < fourth, "{second}, {third}, {fourth}");
    let minute = 60_000 * 64;
    let spent = fourth.counter() - first.counter();
    assert!(
        spent < 10 * minute,
        "an election cost {spent} counters, which is more than the clock gives in 10 min"
    );
}

#[tokio::test]
async fn fences_grow_while_others_write_the_ledger() {
    let ensemble = Server::ensemble().await.unwrap();
    let held = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for process in 0..6 {
        // Each by way of one server, so that some are behind the others.
        let locker = new_process(&ensemble.nodes()[process % 3]).await;
        let held = held.clone();
        tasks.spawn(async move {
            for _ in 0..25 {
                let guard = soon("the lock", locker.lock("job")).await.unwrap();
                held.lock().unwrap().push(guard.fence());
                guard.release().await.unwrap();
            }
        });
    }
    let operator = Client::connect(&ensemble.nodes()[0].address()).await.unwrap();
    let mut written = 0;
    while !tasks.is_empty() {
        // As somebody does who finds it used up.
        if let Ok((data, stat)) = operator.get_data(LEDGER).await {
            let text = String::from_utf8(data).unwrap();
            let next = text.lines().find_map(|it| it.strip_prefix("next=")?.parse::<u64>().ok()).unwrap();
            let clock = u64::try_from(stat.mtime).unwrap() * 64;
            let text = format!("lockkeeper=1\nnext={}\n", next.max(clock) + (1 << 20) + 1);
            written +=
                u32::from(operator.set_data(LEDGER, text.as_bytes(), Some(stat.version)).await.is_ok());
        }
        tokio::select! {
            Some(done) = tasks.join_next() => done.unwrap(),
            () = Clock::boot().sleep(Duration::from_millis(5)) => {}
        }
    }
    let fences = held.lock().unwrap();
    assert_eq!(fences.len(), 150);
    assert!(fences.windows(2).all(|it| it[0] < it[1]), "in the order of their holds: {fences:?}");
    assert!(10 < written, "it was written {written} times");
}

/// A server on which the line of `job` has had so many claims.
async fn with_number(number: i32) -> Server {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let operator = Client::connect(&server.address()).await.unwrap();
    let open = Acls::anyone_all();
    operator.create("/lockkeeper", b"", &CreateMode::Persistent.with_acls(open)).await.unwrap();
    operator
        .create("/lockkeeper/job", b"", &CreateMode::Container.with_acls(Acls::anyone_all()))
        .await
        .unwrap();
    let mut state = operator.state_watcher();
    drop(operator);
    while !state.changed().await.is_terminated() {}
    let last = last_zxid(&server).await;
    server.kill().unwrap();
    let first = Created { path: "/lockkeeper/job/first", owner: 0, number };
    history::append(server.folder(), last + 1, &[first.bytes(), history::deleted(first.path)]);
    server.start().await.unwrap();
    server
}

/// The number of the last transaction.
pub(crate) async fn last_zxid(server: &Server) -> i64 {
    let answer = server.word("srvr").await.unwrap();
    let zxid = answer.lines().find_map(|it| it.strip_prefix("Zxid: 0x")).unwrap();
    i64::from_str_radix(zxid, 16).unwrap()
}

/// Let claims of four processes contend, with patience and without, and count how many are inside at once.
async fn contend(server: &Server, rounds: usize) {
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for process in 0..4 {
        let locker = new_process(server).await;
        let work = Client::connect(&server.address()).await.unwrap();
        let inside = inside.clone();
        tasks.spawn(async move {
            let mut fences = Vec::new();
            while fences.len() < rounds {
                let guard = if process == 3 {
                    let Some(guard) = locker.try_lock("job").await.unwrap() else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    guard
                } else {
                    soon("the lock", locker.lock("job")).await.unwrap()
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                fences.push(guard.fence());
                // As long as a few trips take, so that a second holder would be seen.
                for _ in 0..3 {
                    work.check_stat("/lockkeeper").await.unwrap();
                }
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two hold the lock");
                guard.release().await.unwrap();
            }
            fences
        });
    }
    let mut fences: Vec<Fence> = soon("all rounds", tasks.join_all()).await.into_iter().flatten().collect();
    fences.sort();
    assert!(fences.windows(2).all(|it| it[0] < it[1]), "a fence was given twice");
}

#[tokio::test]
async fn a_line_whose_numbers_stick_at_their_end_has_one_holder_at_a_time() {
    contend(&with_number(i32::MAX - 8).await, 10).await;
}

#[tokio::test]
async fn a_line_near_the_end_of_its_numbers_serves_those_inside_and_begins_anew() {
    let server = with_number(i32::MAX - 0xFFFF - 4).await;
    let (here, there) = (new_process(&server).await, new_process(&server).await);
    let mut guards = Vec::new();
    for _ in 0..3 {
        let guard = soon("the lock", here.lock("job")).await.unwrap();
        guards.push(guard.fence());
        guard.release().await.unwrap();
    }
    // The last of the old numbers.
    let guard = soon("the lock", here.lock("job")).await.unwrap();
    guards.push(guard.fence());
    assert!(there.try_lock("job").await.unwrap().is_none(), "it is held");
    let waiter = tokio::spawn(async move { there.lock("job").await });
    contend_in_vain(&server).await;
    assert!(!waiter.is_finished(), "it is held");
    guard.release().await.unwrap();
    let next = soon("the first of the new line", waiter).await.unwrap().unwrap();
    guards.push(next.fence());
    assert!(guards.windows(2).all(|it| it[0] < it[1]), "{guards:?}");
    let operator = Client::connect(&server.address()).await.unwrap();
    let names = operator.list_children("/lockkeeper/job").await.unwrap();
    let numbers: Vec<i64> = names.iter().filter_map(|it| it.rsplit('-').next()?.parse().ok()).collect();
    assert!(numbers.iter().all(|it| *it < 100), "its numbers began anew: {names:?}");
    next.release().await.unwrap();
    contend(&server, 5).await;
}

/// Somebody without patience comes by and leaves nothing behind.
async fn contend_in_vain(server: &Server) {
    let locker = new_process(server).await;
    for _ in 0..3 {
        assert!(locker.try_lock("job").await.unwrap().is_none(), "it is held");
    }
}
