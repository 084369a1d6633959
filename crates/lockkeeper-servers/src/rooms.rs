//! What stores promise about rooms and only a real server can show: who is called, and what goes in one trip.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a case is a test: it fails by panicking, and says so in one place"
)]

use std::future::IntoFuture;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Claim, Key, Load, Locker};

use crate::process::{KitError, eventually};
use crate::proxy::{Direction, Proxy, Rule};
use crate::quorum::{PATIENCE, soon, take};

async fn waits(place: &mut impl Place) {
    assert!(matches!(place.turn().await.unwrap(), Turn::Wait { .. }), "entered past others");
}

/// Whoever wrote goes on as a reader: readers of another process are called and enter, the writer behind them stays out
/// until all have gone. Once for a writer that found the lock free, once for one that had to wait for it.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn readers_behind_are_called<B: Backend<Place: Place>>(here: &B, there: &B, ttl: Duration) {
    for had_to_wait in [false, true] {
        let claim = |load| Claim::new(Key::new("prices").unwrap(), ttl).unwrap().load(load);
        let (mut before, mut holder) = (here.enter(claim(Load::MUTEX)), here.enter(claim(Load::WRITER)));
        if had_to_wait {
            take(&mut before).await;
            waits(&mut holder).await;
        } else {
            take(&mut holder).await;
        }
        let mut readers = [(); 3].map(|()| there.enter(claim(Load::READER)));
        for reader in &mut readers {
            waits(reader).await;
        }
        let mut writer = there.enter(claim(Load::WRITER));
        waits(&mut writer).await;
        before.leave().await.unwrap();
        take(&mut holder).await;
        assert!(holder.lower(Load::READER).await.unwrap(), "it was held");
        for reader in &mut readers {
            take(reader).await;
        }
        waits(&mut writer).await;
        holder.leave().await.unwrap();
        let [first, rest @ ..] = &mut readers;
        first.leave().await.unwrap();
        waits(&mut writer).await;
        for reader in rest {
            reader.leave().await.unwrap();
        }
        take(&mut writer).await;
        writer.leave().await.unwrap();
    }
}

/// Whoever waits for permits hears that another process counts them otherwise.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn a_disagreement_is_told<B: Backend<Place: Place>>(here: &B, there: &B, ttl: Duration) {
    let claim = |load| Claim::new(Key::new("mail").unwrap(), ttl).unwrap().load(load);
    let (mut careful, mut writer) = (here.enter(claim(Load::new(2, 3))), here.enter(claim(Load::WRITER)));
    let (mut same, mut other) = (there.enter(claim(Load::new(2, 3))), there.enter(claim(Load::new(2, 8))));
    take(&mut careful).await;
    for (place, told) in [(&mut same, None), (&mut other, Some(3))] {
        let turn = place.turn().await.unwrap();
        assert!(matches!(turn, Turn::Wait { theirs, .. } if theirs == told), "{turn:?}");
    }
    let turn = writer.turn().await.unwrap();
    assert!(matches!(turn, Turn::Wait { theirs: None, .. }), "who is alone counts nothing: {turn:?}");
    for place in [&mut careful, &mut same, &mut other, &mut writer] {
        place.leave().await.unwrap();
    }
}

/// Take these locks through a proxy that keeps back every answer: all of them are at the store before any of them is heard
/// of, which is what one trip means. `beside` looks at the store on another way.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn taken_in_one_trip(proxy: &Proxy, locker: &Locker, beside: &impl Inspect, names: [&str; 3]) {
    // Twice in vain: the connections are open then, and the statements that go by them known.
    for _ in 0..2 {
        locker.lock_all(names).await.unwrap().release().await.unwrap();
    }
    proxy.set(Direction::ToClient, Rule::Hold);
    let taking = tokio::spawn(locker.lock_all(names).into_future());
    let all_are_there = eventually(PATIENCE / 3, async || {
        let infos = beside.list("").await.map_err(|it| KitError::new(it.to_string()))?;
        let held = names.iter().filter(|it| infos.iter().any(|info| info.key.as_str() == **it)).count();
        if held == names.len() { Ok(()) } else { Err(KitError::new(format!("{held} of them are held"))) }
    });
    let all_are_there = all_are_there.await;
    proxy.set(Direction::ToClient, Rule::Pass);
    all_are_there.expect("something waits for an answer before it asks for the next");
    let held = soon("the answer", taking).await.unwrap().unwrap();
    held.release().await.unwrap();
}

/// Ask for all permits of a name at once, through a proxy that keeps back every answer: all of them are at the store before any of
/// them is heard of. `beside` looks at the store on another way.
///
/// # Cancel safety
/// Dropped half-way it leaves its permits to their ttl.
pub async fn permits_in_one_trip(proxy: &Proxy, locker: &Locker, beside: &impl Inspect, name: &str) {
    const PERMITS: u32 = 8;
    let ask = || locker.permits(name, 1, PERMITS);
    // In vain: the connections are open then.
    for _ in 0..2 {
        ask().await.unwrap().release().await.unwrap();
    }
    proxy.set(Direction::ToClient, Rule::Hold);
    let asking: Vec<_> = (0..PERMITS).map(|_| tokio::spawn(ask().into_future())).collect();
    let key = Key::new(name).unwrap();
    let all_are_there = eventually(PATIENCE / 3, async || {
        let seen = beside.show(&key).await.map_err(|it| KitError::new(it.to_string()))?;
        let held = seen.map_or(0, |it| it.holders.len());
        if held == asking.len() { Ok(()) } else { Err(KitError::new(format!("{held} of them are held"))) }
    });
    let all_are_there = all_are_there.await;
    proxy.set(Direction::ToClient, Rule::Pass);
    all_are_there.expect("a permit waits for the answer about another");
    for permit in asking {
        soon("the answer", permit).await.unwrap().unwrap().release().await.unwrap();
    }
}
