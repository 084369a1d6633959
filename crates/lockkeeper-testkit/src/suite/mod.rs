//! The conformance suite: the contract of [`lockkeeper_core::backend`], line by line, as tests.
//!
//! ```
//! use lockkeeper_core::{Clock, Memory};
//! use lockkeeper_testkit::suite::Harness;
//!
//! struct InMemory(Memory);
//!
//! impl Harness for InMemory {
//!     type Backend = Memory;
//!     async fn connect(&self) -> Memory {
//!         self.0.clone()
//!     }
//! }
//!
//! lockkeeper_testkit::suite!(memory, InMemory(Memory::new(Clock::boot())));
//! ```
//!
//! makes a test of every case, each visible by its name. The harness expression may `.await`; it is
//! evaluated once for each case. What a store does not promise in its profile is not asked of it, and the
//! test says so on standard error.
//!
//! No case is a measurement. A lower bound of time may be asserted: nobody is granted too early. An upper
//! bound is only ever the generous patience after which a hang is called a hang.

mod contender;
mod harness;
mod trial;

pub mod counters;
pub mod exclusion;
pub mod hammer;
pub mod lease;
pub mod line;
pub mod lowering;
pub mod memos;
pub mod names;
pub mod primitives;
pub mod quiet;
pub mod renewal;
pub mod unknown;
pub mod verbs;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use contender::Contender;
pub use harness::Harness;
pub use trial::{Failure, Outcome, Trial, Verdict, test};

type Running = Pin<Box<dyn Future<Output = Verdict>>>;

/// One case of the suite.
#[derive(Debug)]
pub struct Case<H> {
    /// Its name, which is a sentence.
    pub name: &'static str,
    /// The lines of the contract that it shows.
    pub lines: &'static [u8],
    run: fn(Arc<H>) -> Running,
}

impl<H: Harness> Case<H> {
    /// Run it.
    ///
    /// # Errors
    /// What is wrong with the store.
    ///
    /// # Cancel safety
    /// A case dropped half-way leaves its claims in the store until their ttl has passed.
    pub async fn run(&self, harness: &Arc<H>) -> Verdict {
        (self.run)(harness.clone()).await
    }
}

/// Every case, for those who want to run them in their own way.
pub fn cases<H: Harness>() -> Vec<Case<H>> {
    macro_rules! list {
        ([] $($module:ident :: $case:ident [$($line:literal),*];)*) => {
            vec![$(Case {
                name: stringify!($case),
                lines: &[$($line),*],
                run: |harness| Box::pin(async move { Trial::run(&harness, $module::$case).await }),
            }),*]
        };
    }
    crate::__cases!([list] [])
}

/// Make a test of every case of the suite: `suite!(module_name, harness)`.
#[macro_export]
macro_rules! suite {
    ($name:ident, $harness:expr) => {
        mod $name {
            #[allow(
                unused_imports,
                reason = "the harness may need what is in scope where the suite is called"
            )]
            use super::*;
            $crate::__cases!([$crate::__tests][$harness]);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ([$harness:expr] $($module:ident :: $case:ident [$($line:literal),*];)*) => {
        $(
            #[test]
            fn $case() {
                $crate::suite::test(stringify!($case), || async { $harness }, $crate::suite::$module::$case);
            }
        )*
    };
}

/// The list of cases, each with the lines of the contract that it shows.
#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ([$($then:tt)*] $with:tt) => {
        $($then)*! { $with
            exclusion::a_mutex_has_one_holder [1];
            exclusion::a_renewed_lock_is_kept_for_many_ttls [1, 9];
            exclusion::different_keys_do_not_meet [1];
            exclusion::weights_never_exceed_the_capacity [1];
            exclusion::readers_share_and_a_writer_excludes [1];
            exclusion::the_smallest_capacity_counts [1];
            exclusion::what_can_never_fit_is_refused_and_blocks_nobody [14];
            verbs::asking_twice_gives_one_grant [2];
            verbs::asking_twice_in_line_keeps_one_place [2];
            verbs::another_place_with_the_same_id_is_the_same_claim [2];
            verbs::leaving_twice_releases_nobody_else [2, 6];
            verbs::leaving_is_legal_before_asking_and_in_line [6];
            verbs::a_foreign_leave_releases_nothing [2, 6];
            verbs::what_is_answered_at_once_is_the_same_answer [2];
            unknown::a_lost_request_to_take_is_asked_again [3];
            unknown::a_lost_grant_is_found_again [3];
            unknown::a_lost_place_in_line_is_found_again [3, 11];
            unknown::an_unknown_take_can_be_given_up [3, 6];
            unknown::a_lost_renewal_is_asked_again [3];
            unknown::a_lost_release_is_repeated_without_harm [3, 6];
            quiet::entering_leaves_no_trace [4];
            quiet::entering_needs_no_runtime [4];
            quiet::a_dropped_wake_up_loses_nothing [5];
            quiet::a_silent_store_is_asked_again [5];
            quiet::a_wake_up_without_reason_grants_nothing [5];
            quiet::a_holder_may_stop_listening [5];
            renewal::renewing_before_asking_acquires_nothing [7];
            renewal::renewing_in_line_acquires_nothing [7];
            renewal::renewing_after_leaving_acquires_nothing [7];
            renewal::renewing_after_expiry_acquires_nothing [7, 10];
            renewal::renewing_what_another_took_acquires_nothing [7];
            renewal::a_renewal_that_arrives_too_late_is_lost [7, 13];
            counters::counters_grow_from_release_to_release [8];
            counters::counters_grow_over_expiry [8];
            counters::counters_grow_when_nothing_is_left [8];
            counters::counters_grow_among_those_who_share [8];
            counters::counters_grow_over_a_break [8];
            lease::a_grant_lasts_as_long_as_it_says [9];
            lease::a_repeated_grant_lasts_as_long_as_it_says [9];
            lease::a_renewal_lasts_as_long_as_it_says [9];
            lease::a_silenced_session_lasts_as_long_as_it_says [9];
            lease::a_claim_made_long_ago_gets_its_whole_ttl [9, 12];
            lease::each_claim_lives_by_its_own_ttl [10, 12];
            lease::a_crashed_holder_is_replaced [10];
            lease::a_crashed_waiter_does_not_block_the_line [10];
            lease::a_silent_waiter_is_forgotten [10];
            lease::an_answer_that_comes_too_late_harms_nobody [13];
            lease::a_lock_lingers_as_long_as_was_said [17];
            line::the_line_is_served_in_order [11];
            line::who_leaves_the_line_is_skipped [11];
            line::asking_again_keeps_the_place [11];
            line::nobody_overtakes_the_head [11];
            line::a_light_claim_does_not_overtake_a_heavy_head [11];
            line::those_who_fit_enter_together [15];
            lowering::who_lowers_its_weight_lets_in_those_who_fit_and_nobody_in_between [18];
            lowering::who_held_alone_in_a_small_room_lets_readers_in [18];
            lowering::lowering_what_is_not_held_acquires_nothing [18];
            line::an_impatient_claim_leaves_nothing_behind [11];
            line::an_impatient_claim_does_not_overtake [11];
            line::a_holder_hears_that_it_is_wanted [11];
            line::a_holder_is_notified_that_somebody_waits [19];
            line::a_holder_is_notified_that_its_lock_was_broken [19];
            names::odd_names_work_and_never_alias [1];
            memos::whoever_did_not_see_the_last_write_does_not_write [16];
            memos::no_version_is_given_twice [16];
            memos::a_memo_is_kept_as_long_as_was_said [16];
            memos::memos_and_locks_of_one_name_do_not_meet [16];
            memos::many_writers_lose_nothing [16];
            primitives::a_tick_is_done_once_by_all_processes [1, 16];
            primitives::a_latch_counts_each_party_once [16];
            primitives::all_at_a_barrier_hear_one_verdict [16];
            primitives::one_leads_and_everybody_sees_who [1, 8, 16];
            primitives::several_are_had_together_or_none [1, 6];
            primitives::readers_that_never_cease_let_a_writer_in [1, 11];
            hammer::many_tasks_hammer_one_lock [1, 8, 11];
            hammer::many_tasks_hammer_one_room [1, 8, 11];
        }
    };
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::Memory;

    use super::*;

    struct Any;

    impl Harness for Any {
        type Backend = Memory;

        async fn connect(&self) -> Memory {
            Memory::default()
        }
    }

    #[test]
    fn every_line_of_the_contract_has_a_case() {
        for line in 1..=19 {
            assert!(cases::<Any>().iter().any(|it| it.lines.contains(&line)), "line {line} has no case");
        }
    }
}
