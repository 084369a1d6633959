//! Faults and prices of stores whose servers agree by majority and whose locks hang on a session.
//!
//! The author writes a [`Quorum`]: how one server or three are started, and what an administrator does by hand.
//! [`quorum!`](crate::quorum!) then makes a test of every case, and [`Behind`] is the harness of the
//! [conformance suite](mod@lockkeeper_testkit::suite) on the same servers. The cases panic: they are tests, written once for all.
//!
//! Upper limits of time are hang guards. The ttls are long enough for what a loaded machine needs to start servers.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a case is a test: it fails by panicking, and says so in one place"
)]

mod behind;
mod child;
pub mod cluster;
pub mod minority;
pub mod price;
pub mod sharers;
pub mod silence;
pub mod single;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Claim, Clock, Key, Locker};

pub use behind::Behind;

use crate::Daemon;
use crate::process::{KitError, eventually};

/// The servers of one store.
pub trait Quorum: fmt::Debug + Send + Sync + Sized + 'static {
    /// The backend under test.
    type Backend: Backend<Place: Place> + Inspect + Clone;

    /// How many requests a hand-off costs where more than one waits: to give it back, to look, to enter.
    const HAND_OFF_IN_A_LONG_LINE: u64;

    /// How often two processes are told of one release, at most, however many of theirs wait.
    const TOLD_OF_A_RELEASE: u64;

    /// Start one server or three.
    fn start(nodes: usize) -> impl Future<Output = Self> + Send;

    /// The servers.
    fn nodes(&self) -> Vec<&Daemon>;

    /// Whether this server says of itself that it leads.
    fn leads(&self, node: usize) -> impl Future<Output = Result<bool, KitError>> + Send;

    /// The URL for these hosts and locks of this ttl.
    fn url(hosts: &[String], ttl: Duration) -> String;

    /// Connect as a new process would.
    fn connect(url: &str) -> impl Future<Output = Self::Backend> + Send;

    /// As an administrator: end the session or lease of everybody who holds this lock or waits for it.
    fn end_sessions(&self, key: &str) -> impl Future<Output = Result<(), KitError>> + Send;

    /// As an administrator: delete the first claim in the line of this lock.
    fn delete_first(&self, key: &str) -> impl Future<Output = Result<(), KitError>> + Send;

    /// How many requests the server has answered, by its own count and without this question. Of one server.
    fn requests(&self) -> impl Future<Output = u64> + Send;

    /// How many events the server has sent to those who watch, by its own count. Of one server.
    fn events(&self) -> impl Future<Output = u64> + Send;

    /// The URL of all servers, for locks of this ttl.
    fn url_of_all(&self, ttl: Duration) -> String {
        Self::url(&self.nodes().iter().map(|it| it.address()).collect::<Vec<_>>(), ttl)
    }

    /// A locker of a new process that bears outages for as long as a case does.
    fn locker(&self, ttl: Duration) -> impl Future<Output = Locker> + Send {
        async move { locker(&Self::connect(&self.url_of_all(ttl)).await, ttl) }
    }
}

/// How long anything may take before it is called a hang.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A locker that bears outages for as long as a case does.
pub fn locker<B: Backend<Place: Place> + Clone>(backend: &B, ttl: Duration) -> Locker {
    Locker::builder(backend.clone()).ttl(ttl).outage_max(PATIENCE).wait_at_most(PATIENCE).build()
}

/// The answer, unless it takes so long that it must be called a hang.
pub async fn soon<T>(what: &str, answer: impl Future<Output = T>) -> T {
    tokio::select! {
        answer = answer => answer,
        () = Clock::boot().sleep(PATIENCE) => panic!("{what} did not happen within {PATIENCE:?}"),
    }
}

/// A patient claim to a mutex.
pub fn claim(name: &str, ttl: Duration) -> Claim {
    Claim::new(Key::new(name).unwrap(), ttl).unwrap()
}

/// Ask, and wait as long as need be, until the place holds.
pub async fn take(place: &mut impl Place) {
    while !matches!(place.turn().await.unwrap(), Turn::Held(_)) {
        soon("a wake-up", place.changed()).await;
    }
}

/// Wait until so many wait for a lock.
pub async fn waits(backend: &impl Inspect, name: &str, waiters: usize) {
    let key = Key::new(name).unwrap();
    let there = eventually(PATIENCE, async || {
        let seen = backend.show(&key).await.ok().flatten().map_or(0, |it| it.waiters.len());
        if seen == waiters { Ok(()) } else { Err(KitError::new(format!("{seen} wait"))) }
    });
    there.await.unwrap();
}

/// Run a case, unless this process was started to be the other one of a case: then hold the lock instead.
pub fn run<Q: Quorum>(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if !child::is_other_process::<Q>().await {
            case.await;
        }
    });
}

/// Make a test of every fault and every price: `quorum!(Servers)`, where `Servers` is a [`Quorum`].
#[macro_export]
macro_rules! quorum {
    ($quorum:ty) => {
        mod single {
            use super::*;
            $crate::__quorum! { $quorum; single; with_name
                a_killed_holder_is_replaced
                a_frozen_holder_is_replaced_and_learns_of_it_when_it_wakes
            }
            $crate::__quorum! { $quorum; single;
                a_restarted_server_still_knows_who_holds
                a_waiter_is_woken_after_its_server_was_restarted
                a_session_ended_by_an_administrator_is_told_and_replaced
                a_waiter_whose_session_was_ended_stands_in_line_again
                a_waiter_whose_session_alone_was_ended_is_told_and_stands_anew
                a_holder_cut_off_is_told_before_another_gets_it
                a_claim_deleted_by_hand_is_told
                a_waiting_claim_deleted_by_hand_stands_in_line_again
                a_place_whose_answer_was_lost_is_found_again
                a_place_whose_answer_and_session_were_lost_begins_anew
                a_blocked_application_keeps_its_lock
                a_lock_outlives_the_runtime_that_took_it
            }
        }
        mod cluster {
            use super::*;
            $crate::__quorum! { $quorum; cluster;
                a_killed_leader_costs_no_lock
                a_leader_that_sleeps_and_wakes_costs_no_lock
                all_nodes_restarted_cost_no_lock
                a_quorum_that_is_back_in_time_costs_no_lock
                a_lost_quorum_costs_the_lock_at_its_deadline_and_no_earlier_fence_returns
                a_holder_cut_off_from_its_node_goes_to_another
                a_waiter_cut_off_from_its_node_is_woken_through_another
                a_session_ended_by_an_administrator_is_told_and_replaced
                a_place_whose_answer_was_lost_is_found_again
            }
        }
        mod price {
            use super::*;
            $crate::__quorum! { $quorum; price;
                one_release_wakes_one_of_a_thousand
                ten_thousand_held_locks_cost_one_heartbeat
                a_warm_lock_that_is_taken_again_costs_the_heartbeat
                a_hand_off_between_processes_costs_two_requests
                a_hand_off_in_a_long_line_costs_what_the_store_says
            }
        }
        mod sharers {
            use super::*;
            $crate::__quorum! { $quorum; sharers;
                fifty_readers_enter_by_one_leave
                a_reader_that_is_slow_is_waited_for
                a_downgrade_calls_the_readers_behind_it_and_keeps_its_fence
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __quorum {
    ($quorum:ty; $module:ident; with_name $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                let name = concat!(module_path!(), "::", stringify!($case));
                $crate::quorum::run::<$quorum>($crate::quorum::$module::$case::<$quorum>(name));
            }
        )*
    };
    ($quorum:ty; $module:ident; $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $crate::quorum::run::<$quorum>($crate::quorum::$module::$case::<$quorum>());
            }
        )*
    };
}
