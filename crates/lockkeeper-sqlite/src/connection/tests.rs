//! What only the thread's inside can show: batches, and a disk that fills up.

use std::future::Future;
use std::path::Path;
use std::task::{Context, Waker};

use lockkeeper_core::backend::{Renewal, Turn};
use lockkeeper_core::{Claim, Label, Load};

use super::*;
use crate::verb::{AskLeave, AskRenew, AskTurn};

fn claim(key: &str) -> Arc<Claim> {
    Arc::new(
        Claim::new(Key::new(key).unwrap(), Duration::from_secs(60))
            .unwrap()
            .labelled(Arc::new(Label::of_this_process().with(None, Some(&"n".repeat(256))))),
    )
}

fn ask_turn(claim: &Arc<Claim>) -> AskTurn {
    AskTurn::new(claim.clone(), None)
}

/// A thread that is not yet running, so that requests can wait for it together.
fn wire(file: File) -> (Wire, Thread) {
    Thread::wired(file).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// How many transactions the write-ahead log holds: a commit marks its last frame with the file's size.
fn commits(path: &Path) -> usize {
    let log = std::fs::read(path.with_file_name("locks.db-wal")).unwrap();
    let page = usize::try_from(u32::from_be_bytes(log[8..12].try_into().unwrap())).unwrap();
    log[32..].chunks_exact(24 + page).filter(|frame| frame[4..8] != [0; 4]).count()
}

#[test]
fn what_waits_together_is_committed_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let file = File::open(SqliteOptions::new(&path)).unwrap();
    let (wire, thread) = wire(file);
    let claims: Vec<_> = (0..100).map(|it| claim(&format!("key {}", it / 2))).collect();
    let before = commits(&path);
    let mut cx = Context::from_waker(Waker::noop());
    let mut turns: Vec<_> = claims.iter().map(|it| Box::pin(wire.ask(ask_turn(it)))).collect();
    for turn in &mut turns {
        assert!(turn.as_mut().poll(&mut cx).is_pending());
    }
    let server = std::thread::spawn(move || thread.serve());
    let mut held = 0;
    for turn in turns {
        held += usize::from(matches!(block_on(turn).unwrap().turn, Turn::Held(_)));
    }
    assert_eq!(held, 50, "each has its own answer");
    assert_eq!(commits(&path) - before, 1);
    drop(wire);
    server.join().unwrap();
}

#[test]
fn a_renewal_goes_before_all_who_ask_for_more() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::open(SqliteOptions::new(folder.path().join("locks.db"))).unwrap();
    let (wire, mut thread) = wire(file);
    let held = claim("held before");
    let mut cx = Context::from_waker(Waker::noop());
    let mut first = Box::pin(wire.ask(ask_turn(&held)));
    assert!(first.as_mut().poll(&mut cx).is_pending());
    assert!(thread.take());
    assert!(matches!(block_on(first).unwrap().turn, Turn::Held(_)));
    // More than fit into two transactions, and then the renewal.
    let crowd: Vec<_> = (0..2 * BATCH_MAX).map(|it| claim(&format!("key {it}"))).collect();
    let mut turns: Vec<_> = crowd.iter().map(|it| Box::pin(wire.ask(ask_turn(it)))).collect();
    for turn in &mut turns {
        assert!(turn.as_mut().poll(&mut cx).is_pending());
    }
    let asked = Clock::boot().now();
    let mut renewal = Box::pin(wire.ask(AskRenew(held)));
    assert!(renewal.as_mut().poll(&mut cx).is_pending());
    assert!(thread.take());
    let Renewal::Held { sent_at: Some(renewed_at), .. } = block_on(renewal).unwrap() else {
        panic!("it is held");
    };
    let answered =
        turns.iter_mut().map(|it| usize::from(it.as_mut().poll(&mut cx).is_ready())).sum::<usize>();
    assert_eq!(answered, BATCH_MAX - 1, "the rest of the first transaction");
    // And it counts from when it was written.
    assert!(asked <= renewed_at);
}

#[test]
fn one_that_fails_does_not_take_the_others_of_its_batch_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::open(SqliteOptions::new(folder.path().join("locks.db"))).unwrap();
    let (wire, thread) = wire(file);
    let good = claim("good");
    let bad = Arc::new((*claim("bad")).clone().load(Load::new(2, 1)));
    let mut cx = Context::from_waker(Waker::noop());
    let mut turns: Vec<_> = [&good, &bad].map(|it| Box::pin(wire.ask(ask_turn(it)))).into();
    for turn in &mut turns {
        assert!(turn.as_mut().poll(&mut cx).is_pending());
    }
    let server = std::thread::spawn(move || thread.serve());
    assert!(block_on(turns.pop().unwrap()).is_err());
    assert!(matches!(block_on(turns.pop().unwrap()).unwrap().turn, Turn::Held(_)));
    drop(turns);
    drop(wire);
    server.join().unwrap();
}

#[test]
fn a_full_disk_is_a_fault_that_passes_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let file = File::open(SqliteOptions::new(&path)).unwrap();
    file.connection().query_row("PRAGMA max_page_count = 20", [], |_| Ok(())).unwrap();
    let (wire, thread) = wire(file);
    let server = std::thread::spawn(move || thread.serve());
    let mut claims = Vec::new();
    let fault = loop {
        let next = claim(&format!("{:0>500}", claims.len()));
        match block_on(wire.ask(ask_turn(&next))) {
            Ok(answer) => assert!(matches!(answer.turn, Turn::Held(_))),
            Err(fault) => break fault,
        }
        claims.push(next);
        assert!(claims.len() < 10_000, "the file grows without bound");
    };
    assert!(fault.is_transient());
    assert!(fault.to_string().contains("disk is full"), "{fault}");
    // Those who hold keep what they have, and can go on and give it up.
    for claim in &claims {
        assert!(matches!(block_on(wire.ask(AskRenew(claim.clone()))).unwrap(), Renewal::Held { .. }));
    }
    for claim in &claims {
        block_on(wire.ask(AskLeave { claim: claim.clone(), wanted: false })).unwrap();
    }
    assert!(matches!(block_on(wire.ask(ask_turn(&claims[0]))).unwrap().turn, Turn::Held(_)));
    drop(wire);
    server.join().unwrap();
    assert!(!path.with_file_name("locks.db-wal").exists(), "the last one closes the log");
}

#[test]
fn whoever_leaves_rings_for_the_one_it_lets_in_and_for_one_who_only_has_to_ask() {
    let folder = tempfile::tempdir().unwrap();
    let open = || File::open(SqliteOptions::new(folder.path().join("locks.db"))).unwrap();
    let ((far, other), (near, mut thread)) = (wire(open()), wire(open()));
    let server = std::thread::spawn(move || other.serve());
    let mut cx = Context::from_waker(Waker::noop());
    thread.bell.need(thread.clock.now());
    for load in [Load::MUTEX, Load::new(1, 2)] {
        let key = format!("{load}");
        let holder =
            Arc::new(far.marked((*claim(&key)).clone().load(Load::new(load.capacity, load.capacity))));
        assert!(matches!(block_on(far.ask(ask_turn(&holder))).unwrap().turn, Turn::Held(_)));
        let waiter = Arc::new(near.marked((*claim(&key)).clone().load(load)));
        let mut turn = Box::pin(near.ask(ask_turn(&waiter)));
        assert!(turn.as_mut().poll(&mut cx).is_pending());
        assert!(thread.take());
        assert!(matches!(block_on(turn).unwrap().turn, Turn::Wait { .. }));
        assert_eq!(thread.bell.rung().count(), 0, "nothing to tell yet");
        block_on(far.ask(AskLeave { claim: holder, wanted: true })).unwrap();
        assert_eq!(thread.bell.rung().collect::<Vec<_>>(), [waiter.id], "{load}");
    }
    drop(far);
    server.join().unwrap();
}
