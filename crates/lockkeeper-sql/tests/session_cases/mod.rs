//! What session locks promise, told once for all servers: what ends a session, what a server forgets, who may not come in.

mod faults;
mod many;

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Claim, Clock, Error, Key, Locker};
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};

use crate::faults::Site;

pub(crate) use faults::*;
pub(crate) use many::*;

/// A patience that only a hang exceeds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// Longer than any patience: whoever takes over before has not waited for it.
pub(crate) const LONG: Duration = Duration::from_secs(1000);
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// A server that keeps session locks, too.
pub(crate) trait Sessions: Site {
    type Sessions: Backend + Inspect + Clone;
    async fn sessions(url: &str) -> Result<Self::Sessions, Error>;
    async fn durable(url: &str) -> Result<Self::Store, Error>;
    /// What turns the store over to session locks, and back.
    fn switches() -> [String; 2];
    /// A server, and another that follows it.
    async fn followed() -> (Self, Self);
    /// Whether the follower knows of the session that has begun. It may not have the tables yet.
    async fn knows(&self, leader: &Self) -> bool;
    /// The one that it followed is dead.
    async fn promote(&self);
    /// After the first session: fences of later ones are far ahead of the server's clock, as if that went slow.
    const FENCES_AHEAD: &'static str;
    /// The settings under which the server counts statements, and nobody else's.
    const COUNTS: &'static [(&'static str, &'static str)];
    /// How many statements were asked, at least by sessions that have ended. Asking costs some as well.
    async fn statements(&self) -> u64;
    /// What grows with each beat, and not by much else while locks are only held.
    async fn beats(&self) -> u64;
    /// How many sessions of ours the server has.
    async fn open_sessions(&self) -> u64;
    /// A server with room for a dozen connections, and the address of a user who may not have more.
    async fn narrow() -> (Self, String);
}

pub(crate) fn session_url(url: &str) -> String {
    let between = if url.contains('?') { '&' } else { '?' };
    format!("{url}{between}mode=session")
}

pub(crate) async fn open<S: Sessions>(url: &str) -> S::Sessions {
    S::sessions(&session_url(url)).await.unwrap()
}

pub(crate) fn locker(store: impl Backend, ttl: Duration) -> Locker {
    Locker::builder(store).ttl(ttl).wait_at_most(PATIENCE).outage_max(PATIENCE).build()
}

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::select! {
        out = work => out,
        () = Clock::boot().sleep(PATIENCE) => panic!("this hangs"),
    }
}

pub(crate) async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    within(async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// The server through a network of our own.
pub(crate) async fn by_proxy(site: &impl Sessions) -> (Proxy, String) {
    let network = Proxy::start(site.port()).await.unwrap();
    let url = site.url().replace(&site.address(), &network.address());
    (network, url)
}

/// The cases that are told in the same words on every server, as tests on this one.
macro_rules! session_cases {
    ($site:ty) => {
        $crate::session_cases::session_cases! { $site:
            a_killed_holder_is_replaced_long_before_its_ttl
            a_stopped_holder_is_replaced_after_its_ttl_and_learns_it
            a_broken_connection_is_told_and_the_next_has_the_lock
            a_session_cut_on_the_servers_side_only_has_two_holders_and_one_who_may_write
            after_a_restart_nobody_is_let_in_before_the_longest_ttl_is_over
            a_promoted_replica_with_a_slow_clock_lets_nobody_in_too_early_and_its_fences_grow
            a_store_keeps_locks_of_one_mode_and_is_turned_over_without_a_step_back
            operators_see_who_holds_and_who_waits_and_break_one_lock_alone
            a_beat_counts_from_when_it_was_sent
            waiting_for_one_lock_holds_up_none_of_the_others
            callers_of_one_process_wait_by_one_connection
            names_above_the_bound_of_waiting_connections_take_turns
            a_free_lock_is_one_statement_and_its_release_another
            one_beat_keeps_a_thousand_locks
            a_session_that_nobody_uses_is_closed
            whoever_has_waited_leaves_room_for_those_with_another_ttl
            a_long_way_to_the_server_is_not_taken_for_a_wait
            a_waiter_whose_session_ended_without_a_word_stands_in_line_again
            a_server_without_a_connection_left_says_so_and_loses_no_lock
        }
    };
    ($site:ty: $($name:ident)*) => {
        $(#[tokio::test]
        async fn $name() {
            $crate::session_cases::$name::<$site>().await;
        })*
    };
}

pub(crate) use session_cases;

pub(crate) async fn a_store_keeps_locks_of_one_mode_and_is_turned_over_without_a_step_back<S: Sessions>() {
    let site = S::start(&[]).await;
    let (url, [to_sessions, to_rows]) = (site.url(), S::switches());
    let durable = locker(S::durable(&url).await.unwrap(), TTL);
    let first = durable.lock("orders/42").await.unwrap();
    let refused = S::sessions(&session_url(&url)).await.err().unwrap().to_string();
    assert!(refused.contains("keeps durable locks"), "{refused}");

    let held = site.try_sql(&to_sessions).await.unwrap_err().to_string();
    assert!(held.contains("somebody holds a lock"), "{held}");
    let before = first.fence();
    first.release().await.unwrap();
    site.sql(&to_sessions).await;
    let refused = durable.lock("orders/42").await.unwrap_err().to_string();
    assert!(refused.contains("keeps session locks"), "one that still runs is told: {refused}");
    let refused = S::durable(&url).await.err().unwrap().to_string();
    assert!(refused.contains("keeps session locks"), "{refused}");

    let sessions = locker(open::<S>(&url).await, TTL);
    let second = sessions.lock("orders/42").await.unwrap();
    assert!(before < second.fence());
    let used = site.try_sql(&to_rows).await.unwrap_err().to_string();
    assert!(used.contains("still uses"), "{used}");
    let before = second.fence();
    drop((second, sessions));
    // Its sessions end in the background, and the clock passes its fences.
    until(async || site.try_sql(&to_rows).await.ok()).await;
    let durable = locker(S::durable(&url).await.unwrap(), TTL);
    assert!(before < durable.lock("orders/42").await.unwrap().fence());
}

pub(crate) async fn operators_see_who_holds_and_who_waits_and_break_one_lock_alone<S: Sessions>() {
    let site = S::start(&[]).await;
    let (store, there) = (open::<S>(&site.url()).await, locker(open::<S>(&site.url()).await, TTL));
    let here = locker(store.clone(), TTL);
    let broken = here.lock("orders/42").note("import").await.unwrap();
    let kept = here.lock("orders/43").await.unwrap();
    let waiting = tokio::spawn(async move { there.lock("orders/42").await });
    let key = Key::new("orders/42").unwrap();
    let shown = until(async || {
        let shown = store.show(&key).await.unwrap().unwrap();
        (!shown.waiters.is_empty() && shown.holders[0].fence.is_some()).then_some(shown)
    })
    .await;
    assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 1));
    assert_eq!(shown.holders[0].label.note.as_deref(), Some("import"));
    assert_eq!(shown.holders[0].label.pid, std::process::id());
    assert_eq!(shown.holders[0].fence, Some(broken.fence()));
    assert_eq!(shown.holders[0].valid_for, TTL);
    assert!(shown.holders[0].since.is_some() && shown.waiters[0].since.is_some());
    until(async || (store.list("orders/").await.unwrap().len() == 2).then_some(())).await;
    assert!(store.list("order_").await.unwrap().is_empty());

    assert_eq!(within(store.break_lock(&key)).await.unwrap().len(), 1);
    within(broken.lost()).await;
    let next = within(waiting).await.unwrap().unwrap();
    assert!(broken.fence() < next.fence());
    assert!(kept.is_valid() && store.show(kept.key()).await.unwrap().is_some(), "only one lock was broken");
    let first = &store.doctor().await.unwrap()[0];
    assert!(first.consequence.contains("cut on the server's side only"), "{first:?}");
}

pub(crate) async fn a_beat_counts_from_when_it_was_sent<S: Sessions>() {
    let (site, clock) = (S::start(&[]).await, Clock::boot());
    let (network, url) = by_proxy(&site).await;
    let store = open::<S>(&url).await;
    let mut place = store.enter(Claim::new(Key::new("orders/42").unwrap(), LONG).unwrap());
    assert!(matches!(place.turn().await.unwrap(), Turn::Held(_)));
    // What is written down about a lock a moment later has been.
    until(async || (store.list("orders/").await.unwrap().len() == 1).then_some(())).await;
    // Once before, so that what is prepared is prepared, and the next time there is nothing but the beat. Not at once: what was
    // sent a moment ago, when the session began, would serve as one.
    clock.sleep(Duration::from_millis(100)).await;
    place.renew().await.unwrap();
    loop {
        // A beat that was sent a moment ago would serve this renewal, too.
        clock.sleep(Duration::from_millis(100)).await;
        network.set(Direction::ToClient, Rule::Hold);
        let sent = network.counters().to_server;
        let (called, mut renewing) = (clock.now(), Box::pin(place.renew()));
        let held_at = tokio::select! {
            renewal = &mut renewing => panic!("answered although no answer arrives: {renewal:?}"),
            // A statement, not only the question whether the server is there.
            _ = network.wait_for(|it| sent + 30 < it.to_server) => Some(clock.now()),
            () = clock.sleep(Duration::from_secs(2)) => None,
        };
        network.set(Direction::ToClient, Rule::Pass);
        let renewal = within(renewing).await.unwrap();
        let Renewal::Held { valid_for, sent_at, .. } = renewal else { panic!("it was lost") };
        let valid_until = sent_at.unwrap_or(called).after(valid_for);
        // That question may have gone before, and the beat waits for its answer: then nothing is shown.
        let Some(held_at) = held_at else { continue };
        assert!(valid_until <= held_at.after(LONG), "the ttl counts from the answer, not from the beat");
        return;
    }
}
