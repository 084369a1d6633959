//! Histories good and bad: every checker must accept the one and refuse the other.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Claim, ClaimId, Clock, Key, Label, Load, Moment};

use super::*;

const TTL: Duration = Duration::from_millis(100);

/// A record written by hand on a clock that moves by the script.
struct Script {
    clock: Clock,
    history: History,
}

impl Script {
    fn new() -> Self {
        let clock = Clock::virtual_from(Duration::from_secs(1));
        Script { history: History::new(clock.clone()), clock }
    }

    fn after(&self, millis: u64) -> &Self {
        self.clock.advance_by(Duration::from_millis(millis));
        self
    }

    fn grant(&self, claim: &Claim, fence: u64) -> &Self {
        self.grant_asked(claim, fence, self.history.ask())
    }

    fn grant_asked(&self, claim: &Claim, fence: u64, asked: Ask) -> &Self {
        let valid_until = asked.at.after(claim.ttl);
        self.note(claim, What::Granted { asked, fence, valid_until })
    }

    fn waits(&self, claim: &Claim) -> &Self {
        self.note(claim, What::Waits { asked: self.history.ask() })
    }

    fn leaves(&self, claim: &Claim) -> &Self {
        self.note(claim, What::Leaves).note(claim, What::Left)
    }

    fn note(&self, claim: &Claim, what: What) -> &Self {
        self.history.note(claim, what);
        self
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn events(&self) -> Vec<Event> {
        self.history.events()
    }
}

fn claim(id: u8) -> Claim {
    weighted(id, 1, 1)
}

fn weighted(id: u8, weight: u32, capacity: u32) -> Claim {
    Claim::known_as(ClaimId::from_bytes([id; 16]), Key::new("k").unwrap(), TTL)
        .load(Load::new(weight, capacity))
        .labelled(Arc::new(Label::default()))
}

fn rule(verdict: Result<(), Violation>) -> Option<Rule> {
    verdict.err().map(|it| it.rule)
}

#[test]
fn one_after_the_other_is_exclusion_also_on_a_clock_that_stands_still() {
    let (a, b) = (claim(1), claim(2));
    let script = Script::new();
    script.grant(&a, 1).leaves(&a).grant(&b, 2).leaves(&b);
    assert_eq!(exclusion(&script.events()), Ok(()));
}

#[test]
fn two_who_believe_to_hold_at_once_break_exclusion() {
    let (a, b) = (claim(1), claim(2));
    let script = Script::new();
    script.grant(&a, 1).after(10).grant(&b, 2).after(10).leaves(&a).leaves(&b);
    assert_eq!(rule(exclusion(&script.events())), Some(Rule::Exclusion));
}

#[test]
fn a_holder_ends_with_its_validity_its_loss_or_its_crash() {
    let (a, b) = (claim(1), claim(2));
    let expired = Script::new();
    expired.grant(&a, 1).after(100).grant(&b, 2);
    assert_eq!(exclusion(&expired.events()), Ok(()));
    for end in [What::Lost, What::Crashed] {
        let ended = Script::new();
        ended.grant(&a, 1).after(1).note(&a, end).grant(&b, 2);
        assert_eq!(exclusion(&ended.events()), Ok(()));
    }
}

#[test]
fn a_renewal_in_time_prolongs_and_one_too_late_revives_nothing() {
    let (a, b) = (claim(1), claim(2));
    let renewed = Script::new();
    renewed.grant(&a, 1).after(50);
    let valid_until = renewed.now().after(TTL);
    renewed.note(&a, What::Extended { valid_until }).after(70).grant(&b, 2);
    assert_eq!(rule(exclusion(&renewed.events())), Some(Rule::Exclusion));

    let late = Script::new();
    late.grant(&a, 1).after(100);
    let valid_until = late.now().after(TTL);
    late.note(&a, What::Extended { valid_until }).after(10).grant(&b, 2);
    assert_eq!(exclusion(&late.events()), Ok(()));
}

#[test]
fn an_answer_that_comes_after_its_own_deadline_is_no_belief() {
    let (a, b) = (claim(1), claim(2));
    let script = Script::new();
    let asked = script.history.ask();
    script.after(150).grant(&b, 2).grant_asked(&a, 1, asked);
    assert_eq!(exclusion(&script.events()), Ok(()));
}

#[test]
fn weights_add_up_and_the_smallest_capacity_counts() {
    let fits = Script::new();
    fits.grant(&weighted(1, 2, 3), 1).grant(&weighted(2, 1, 3), 2);
    assert_eq!(exclusion(&fits.events()), Ok(()));
    let too_much = Script::new();
    too_much.grant(&weighted(1, 2, 3), 1).grant(&weighted(2, 2, 3), 2);
    assert_eq!(rule(exclusion(&too_much.events())), Some(Rule::Exclusion));
    let disagree = Script::new();
    disagree.grant(&weighted(1, 1, 1), 1).grant(&weighted(2, 1, 9), 2);
    assert_eq!(rule(exclusion(&disagree.events())), Some(Rule::Exclusion));
    let huge = Script::new();
    huge.grant(&weighted(1, u32::MAX, u32::MAX), 1).grant(&weighted(2, u32::MAX, u32::MAX), 2);
    assert_eq!(rule(exclusion(&huge.events())), Some(Rule::Exclusion));
}

#[test]
fn numbers_must_grow_from_answer_to_question() {
    let (a, b) = (claim(1), claim(2));
    let good = Script::new();
    good.grant(&a, 1).leaves(&a).grant(&b, 2);
    assert_eq!(fences(&good.events()), Ok(()));
    for fence in [1, 2] {
        let bad = Script::new();
        bad.grant(&a, 2).leaves(&a).grant(&b, fence);
        assert_eq!(rule(fences(&bad.events())), Some(Rule::Fence), "{fence} after 2");
    }
}

#[test]
fn a_smaller_number_to_who_asked_before_is_no_fault_and_being_told_again_neither() {
    let (a, b) = (weighted(1, 1, 2), weighted(2, 1, 2));
    let crossed = Script::new();
    let asked = crossed.history.ask();
    crossed.grant(&b, 2).grant_asked(&a, 1, asked);
    assert_eq!(fences(&crossed.events()), Ok(()));
    let told_again = Script::new();
    told_again.grant(&a, 1).grant(&b, 2).grant(&a, 1);
    assert_eq!(fences(&told_again.events()), Ok(()));
}

#[test]
fn fifo_is_broken_by_a_newcomer_and_by_a_later_waiter() {
    let (a, b, c) = (claim(1), claim(2), claim(3));
    let good = Script::new();
    good.grant(&a, 1).waits(&b).waits(&c).leaves(&a).grant(&b, 2).leaves(&b).grant(&c, 3);
    assert_eq!(fifo(&good.events()), Ok(()));
    let newcomer = Script::new();
    newcomer.grant(&a, 1).waits(&b).leaves(&a).grant(&c, 2).leaves(&c).grant(&b, 3);
    assert_eq!(rule(fifo(&newcomer.events())), Some(Rule::Fifo));
    let later = Script::new();
    later.grant(&a, 1).waits(&b).waits(&c).leaves(&a).grant(&c, 2);
    assert_eq!(rule(fifo(&later.events())), Some(Rule::Fifo));
}

#[test]
fn those_who_fit_together_do_not_overtake_each_other() {
    let (writer, one, two, late) =
        (claim(1).load(Load::WRITER), claim(2).load(Load::READER), claim(3).load(Load::READER), claim(4));
    let told_in_reverse = Script::new();
    told_in_reverse.grant(&writer, 1).waits(&one).waits(&two).leaves(&writer).grant(&two, 2).grant(&one, 3);
    assert_eq!(fifo(&told_in_reverse.events()), Ok(()));
    let mutex = late.load(Load::MUTEX);
    let passed = Script::new();
    passed.grant(&writer, 1).waits(&mutex).waits(&two).leaves(&writer).grant(&two, 2).grant(&mutex, 3);
    assert_eq!(rule(fifo(&passed.events())), Some(Rule::Fifo));
}

#[test]
fn who_left_or_let_his_place_lapse_is_not_overtaken() {
    let (a, b, c) = (claim(1), claim(2), claim(3));
    let left = Script::new();
    left.grant(&a, 1).waits(&b).waits(&c).leaves(&b).leaves(&a).grant(&c, 2);
    assert_eq!(fifo(&left.events()), Ok(()));
    let lapsed = Script::new();
    lapsed.grant(&a, 1).waits(&b).after(60).waits(&c).after(40).leaves(&a).grant(&c, 2);
    assert_eq!(fifo(&lapsed.events()), Ok(()));
    let kept = Script::new();
    kept.grant(&a, 1).waits(&b).after(60).waits(&c).waits(&b).after(40).leaves(&a).grant(&c, 2);
    assert_eq!(rule(fifo(&kept.events())), Some(Rule::Fifo));
}

#[test]
fn what_left_or_was_silent_too_long_must_not_be_found_in_the_store() {
    let (a, b) = (claim(1), claim(2));
    let found = |it: &Claim| [(it.key.clone(), it.id)];
    let script = Script::new();
    script.grant(&a, 1).waits(&b).leaves(&a);
    let events = script.events();
    assert_eq!(abandoned(&events, &found(&b), script.now()), Ok(()));
    assert_eq!(rule(abandoned(&events, &found(&a), script.now())), Some(Rule::Abandoned));
    assert_eq!(rule(abandoned(&events, &found(&claim(9)), script.now())), Some(Rule::Abandoned));
    script.after(101);
    assert_eq!(rule(abandoned(&events, &found(&b), script.now())), Some(Rule::Abandoned));
    assert_eq!(abandoned(&events, &[], script.now()), Ok(()));
}
