//! The suite itself under test: a flawless store passes, every flaw is caught, every case catches one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_testkit::suite::{Case, Failure, Harness, Outcome, Verdict, cases};
use lockkeeper_testkit::virtual_time::in_virtual_time;

mod toy;

use toy::{Flaw, Toy};

struct Planted(Toy, Clock);

impl Harness for Planted {
    type Backend = Toy;

    async fn connect(&self) -> Toy {
        self.0.clone()
    }

    fn inspect<'b>(&self, backend: &'b Toy) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }

    fn clock(&self) -> Clock {
        self.1.clone()
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }
}

fn run(case: &Case<Planted>, flaw: Flaw) -> Verdict {
    let clock = Clock::virtual_from(Duration::from_secs(1));
    let harness = Arc::new(Planted(Toy::new(clock.clone(), flaw), clock.clone()));
    in_virtual_time(&clock, case.run(&harness)).unwrap_or(Err(Failure::Broken("stuck".to_owned())))
}

/// Every flaw, with cases that must catch it.
const FLAWS: &[(Flaw, &[&str])] = &[
    (
        Flaw::ReleasesWithoutComparing,
        &[
            "a_foreign_leave_releases_nothing",
            "leaving_twice_releases_nobody_else",
            "several_are_had_together_or_none",
        ],
    ),
    (
        Flaw::RenewalRecreates,
        &["renewing_before_asking_acquires_nothing", "a_renewal_that_arrives_too_late_is_lost"],
    ),
    (Flaw::UnfitStandsInLine, &["what_can_never_fit_is_refused_and_blocks_nobody"]),
    (Flaw::RenewalRevivesTheExpired, &["renewing_after_expiry_acquires_nothing"]),
    (Flaw::RenewalOfAWaiterConfirmed, &["renewing_in_line_acquires_nothing"]),
    (Flaw::RenewalAlwaysConfirmed, &["renewing_what_another_took_acquires_nothing"]),
    (Flaw::RenewalOnlyOnce, &["a_lost_renewal_is_asked_again"]),
    (
        Flaw::CounterRepeats,
        &[
            "counters_grow_from_release_to_release",
            "counters_grow_among_those_who_share",
            "one_leads_and_everybody_sees_who",
        ],
    ),
    (
        Flaw::CounterForgotten,
        &["counters_grow_when_nothing_is_left", "counters_grow_from_release_to_release"],
    ),
    (Flaw::GrantTooOptimistic, &["a_grant_lasts_as_long_as_it_says"]),
    (Flaw::GrantTooOptimisticWithSessions, &["a_silenced_session_lasts_as_long_as_it_says"]),
    (Flaw::RepeatedGrantNotExtended, &["a_repeated_grant_lasts_as_long_as_it_says"]),
    (
        Flaw::RenewalNotExtended,
        &["a_renewal_lasts_as_long_as_it_says", "a_renewed_lock_is_kept_for_many_ttls"],
    ),
    (
        Flaw::LineBarges,
        &["nobody_overtakes_the_head", "the_line_is_served_in_order", "many_tasks_hammer_one_lock"],
    ),
    (Flaw::EntersOneByOne, &["those_who_fit_enter_together"]),
    (Flaw::LightOvertakes, &["a_light_claim_does_not_overtake_a_heavy_head", "many_tasks_hammer_one_room"]),
    (Flaw::AskingAgainGoesBack, &["asking_again_keeps_the_place"]),
    (Flaw::ImpatientJoins, &["an_impatient_claim_leaves_nothing_behind"]),
    (Flaw::ImpatientOvertakes, &["an_impatient_claim_does_not_overtake"]),
    (
        Flaw::WaiterNeverForgotten,
        &["a_crashed_waiter_does_not_block_the_line", "a_silent_waiter_is_forgotten"],
    ),
    (Flaw::HolderNeverForgotten, &["a_crashed_holder_is_replaced", "counters_grow_over_expiry"]),
    (Flaw::WeightIgnored, &["weights_never_exceed_the_capacity", "readers_share_and_a_writer_excludes"]),
    (Flaw::NewcomersCapacityIgnored, &["the_smallest_capacity_counts"]),
    (Flaw::HoldersCapacityIgnored, &["the_smallest_capacity_counts"]),
    (Flaw::EnteringJoins, &["entering_leaves_no_trace", "a_lost_request_to_take_is_asked_again"]),
    (Flaw::EnteringNeedsARuntime, &["entering_needs_no_runtime"]),
    (Flaw::AskingTwiceGrantsTwice, &["asking_twice_gives_one_grant"]),
    (Flaw::AskingTwiceJoinsTwice, &["asking_twice_in_line_keeps_one_place"]),
    (Flaw::OwnGrantNotRecognised, &["a_lost_grant_is_found_again"]),
    (Flaw::LeavingTwiceFails, &["leaving_is_legal_before_asking_and_in_line"]),
    (Flaw::LeavingUnaskedFails, &["leaving_is_legal_before_asking_and_in_line"]),
    (Flaw::TwinIsAStranger, &["another_place_with_the_same_id_is_the_same_claim"]),
    (Flaw::AnswersAtOnceLie, &["what_is_answered_at_once_is_the_same_answer"]),
    (Flaw::KeysFoldCase, &["odd_names_work_and_never_alias"]),
    (Flaw::KeysTrimmed, &["odd_names_work_and_never_alias"]),
    (Flaw::KeysCut, &["odd_names_work_and_never_alias"]),
    (Flaw::KeysAllOne, &["different_keys_do_not_meet"]),
    (Flaw::WantedNever, &["a_holder_hears_that_it_is_wanted", "readers_that_never_cease_let_a_writer_in"]),
    (Flaw::WantedAlways, &["a_holder_hears_that_it_is_wanted"]),
    (Flaw::HolderNotNotified, &["a_holder_is_notified_that_somebody_waits"]),
    (Flaw::LossNotTold, &["a_holder_is_notified_that_its_lock_was_broken"]),
    (Flaw::LossToldToListenersOnly, &["a_holder_is_notified_that_its_lock_was_broken"]),
    (Flaw::RecheckTooLate, &["a_mutex_has_one_holder"]),
    (Flaw::WakeUpNeeded, &["a_silent_store_is_asked_again"]),
    (Flaw::PersistenceWins, &["a_wake_up_without_reason_grants_nothing", "a_mutex_has_one_holder"]),
    (Flaw::ListeningReleases, &["a_holder_may_stop_listening"]),
    (Flaw::BreakReleasesNothing, &["counters_grow_over_a_break"]),
    (Flaw::ExpiryFromEntering, &["a_claim_made_long_ago_gets_its_whole_ttl"]),
    (Flaw::LingeringIsLeaving, &["a_lock_lingers_as_long_as_was_said"]),
    (Flaw::LingeringByTheTtl, &["a_lock_lingers_as_long_as_was_said"]),
    (Flaw::LoweringIsLeaving, &["who_lowers_its_weight_lets_in_those_who_fit_and_nobody_in_between"]),
    (Flaw::LoweringIsIgnored, &["who_lowers_its_weight_lets_in_those_who_fit_and_nobody_in_between"]),
    (Flaw::LoweringIsAlwaysConfirmed, &["lowering_what_is_not_held_acquires_nothing"]),
    (
        Flaw::MemoWrittenBlindly,
        &["whoever_did_not_see_the_last_write_does_not_write", "many_writers_lose_nothing"],
    ),
    // They are there for the cases of jobs, latches and roles, each of which must catch some flaw of this list.
    (Flaw::MemoNotKept, &[]),
    (Flaw::MemoNotRemoved, &[]),
    (Flaw::MemoVersionRepeats, &["no_version_is_given_twice"]),
    (Flaw::MemoNeverForgotten, &["a_memo_is_kept_as_long_as_was_said"]),
    (Flaw::MemoForgottenEarly, &["a_memo_is_kept_as_long_as_was_said"]),
    (Flaw::MemoIsTheLock, &["memos_and_locks_of_one_name_do_not_meet"]),
    (Flaw::ExpiryByTheAskersTtl, &["each_claim_lives_by_its_own_ttl"]),
];

#[test]
fn a_store_without_a_flaw_passes_every_case() {
    for case in cases::<Planted>() {
        for flaw in [Flaw::None, Flaw::NoneWithSessions] {
            // The toy keeps no heartbeat, so with sessions only the case about sessions means anything.
            let sessions = case.name == "a_silenced_session_lasts_as_long_as_it_says";
            if (flaw == Flaw::NoneWithSessions) != sessions {
                continue;
            }
            assert_eq!(run(&case, flaw), Ok(Outcome::Shown), "{} on {flaw:?}", case.name);
        }
    }
}

#[test]
fn every_flaw_is_caught_by_the_cases_made_for_it() {
    let cases: BTreeMap<_, _> = cases::<Planted>().into_iter().map(|it| (it.name, it)).collect();
    for (flaw, catchers) in FLAWS {
        for name in *catchers {
            let verdict = run(&cases[name], *flaw);
            assert!(matches!(verdict, Err(Failure::Broken(_))), "{name} on {flaw:?}: {verdict:?}");
        }
    }
}

#[test]
fn every_case_catches_some_flaw() {
    for case in cases::<Planted>() {
        let caught = FLAWS.iter().find(|(flaw, _)| matches!(run(&case, *flaw), Err(Failure::Broken(_))));
        assert!(
            caught.is_some(),
            "no flaw makes {} fail {:?}",
            case.name,
            [Flaw::WantedNever, Flaw::LineBarges, Flaw::None].map(|it| run(&case, it))
        );
    }
}
