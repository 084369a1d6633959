//! The take-over of a seat as a model, checked in every order of events: what the fence in the log is for.
//!
//! Coordinators take a lock that may expire at any time without their noticing, raise the log's fence, finish what older
//! epochs left, and run one transaction of their own. Any of them may stand still between any two steps.

#![allow(clippy::expect_used, reason = "a test may panic")]

use stateright::{Checker, Model, Property};

const COORDINATORS: usize = 3;
const BRANCHES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Branch {
    Nothing,
    Prepared,
    Committed,
    RolledBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Without a seat.
    Outside,
    /// Holds the lock, or believes so; the log does not know.
    Locked(usize),
    /// The log knows. Finishes what was left.
    Raised(usize),
    /// Works on its own transaction, which has the number of its epoch.
    Working(usize),
    /// Tells its branches to commit.
    Decided(usize),
    /// Was refused by the log.
    Superseded,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    holder: Option<usize>,
    /// How many locks were given: the next fence.
    given: usize,
    newest: usize,
    rows: Vec<bool>,
    branches: Vec<[Branch; BRANCHES]>,
    phases: Vec<Phase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Expire,
    Lock(usize),
    Raise(usize),
    Settle(usize, usize, usize),
    Work(usize),
    Prepare(usize, usize),
    Decide(usize),
    Order(usize, usize),
}

/// The protocol, with or without the check of the fence in the decision.
struct TakeOver {
    checked: bool,
}

impl TakeOver {
    /// What an older epoch has left that nobody has ended.
    fn left(state: &State, fence: usize) -> Vec<(usize, usize)> {
        let all = (0..fence).flat_map(|epoch| (0..BRANCHES).map(move |branch| (epoch, branch)));
        all.filter(|(epoch, branch)| state.branches[*epoch][*branch] == Branch::Prepared).collect()
    }
}

impl Model for TakeOver {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            holder: None,
            given: 1,
            newest: 0,
            rows: vec![false; COORDINATORS + 1],
            branches: vec![[Branch::Nothing; BRANCHES]; COORDINATORS + 1],
            phases: vec![Phase::Outside; COORDINATORS],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.holder.is_some() {
            actions.push(Action::Expire);
        }
        for (who, phase) in state.phases.iter().enumerate() {
            match *phase {
                Phase::Outside if state.holder.is_none() => actions.push(Action::Lock(who)),
                Phase::Outside | Phase::Superseded => {}
                Phase::Locked(_) => actions.push(Action::Raise(who)),
                Phase::Raised(fence) => {
                    let left = TakeOver::left(state, fence);
                    actions.extend(left.iter().map(|(epoch, branch)| Action::Settle(who, *epoch, *branch)));
                    if left.is_empty() {
                        actions.push(Action::Work(who));
                    }
                }
                Phase::Working(fence) => {
                    // It knows what it was told: a branch that was rolled back behind its back counts as prepared.
                    let open = |it: &usize| state.branches[fence][*it] == Branch::Nothing;
                    let open: Vec<usize> = (0..BRANCHES).filter(open).collect();
                    actions.extend(open.iter().map(|it| Action::Prepare(who, *it)));
                    if open.is_empty() {
                        actions.push(Action::Decide(who));
                    }
                }
                Phase::Decided(fence) => {
                    let waits = |it: &usize| state.branches[fence][*it] == Branch::Prepared;
                    actions.extend((0..BRANCHES).filter(waits).map(|it| Action::Order(who, it)));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Expire => state.holder = None,
            Action::Lock(who) => {
                state.holder = Some(who);
                state.phases[who] = Phase::Locked(state.given);
                state.given += 1;
            }
            Action::Raise(who) => {
                let Phase::Locked(fence) = last.phases[who] else { return None };
                let newest = last.newest < fence;
                state.newest = last.newest.max(fence);
                state.phases[who] = if newest { Phase::Raised(fence) } else { Phase::Superseded };
            }
            Action::Settle(_, epoch, branch) => {
                let ended = if last.rows[epoch] { Branch::Committed } else { Branch::RolledBack };
                state.branches[epoch][branch] = ended;
            }
            Action::Work(who) => {
                let Phase::Raised(fence) = last.phases[who] else { return None };
                state.phases[who] = Phase::Working(fence);
            }
            Action::Prepare(who, branch) => {
                let Phase::Working(fence) = last.phases[who] else { return None };
                state.branches[fence][branch] = Branch::Prepared;
            }
            Action::Decide(who) => {
                let Phase::Working(fence) = last.phases[who] else { return None };
                let refused = self.checked && last.newest != fence;
                state.rows[fence] = !refused;
                state.phases[who] = if refused { Phase::Superseded } else { Phase::Decided(fence) };
            }
            Action::Order(who, branch) => {
                let Phase::Decided(fence) = last.phases[who] else { return None };
                state.branches[fence][branch] = Branch::Committed;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no transaction is split", |_, state: &State| {
                !state
                    .branches
                    .iter()
                    .any(|it| it.contains(&Branch::Committed) && it.contains(&Branch::RolledBack))
            }),
            Property::always("what is decided is never rolled back", |_, state: &State| {
                !state
                    .rows
                    .iter()
                    .zip(&state.branches)
                    .any(|(row, it)| *row && it.contains(&Branch::RolledBack))
            }),
            Property::sometimes("a transaction is committed", |_, state: &State| {
                state.branches.iter().any(|it| it.iter().all(|it| *it == Branch::Committed))
            }),
            Property::sometimes("a successor commits what it found", |_, state: &State| {
                let late = |(epoch, it): (usize, &[Branch; BRANCHES])| {
                    epoch < state.newest && it.iter().all(|it| *it == Branch::Committed)
                };
                state.branches.iter().enumerate().any(late)
            }),
        ]
    }
}

#[test]
fn no_transaction_is_split_in_any_order_of_events() {
    let checker = TakeOver { checked: true }.checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 1000, "{} states are no proof", checker.unique_state_count());
}

#[test]
fn without_the_fence_a_replaced_coordinator_splits_one() {
    let checker = TakeOver { checked: false }.checker().spawn_bfs().join();
    let path = checker.discovery("what is decided is never rolled back").expect("there is a counterexample");
    let actions = path.into_actions();
    // It was replaced before it decided, and decided all the same.
    let decided = actions.iter().rposition(|it| matches!(it, Action::Decide(_))).expect("somebody decided");
    let raised = actions.iter().filter(|it| matches!(it, Action::Raise(_))).count();
    assert!(
        raised == 2 && actions[..decided].iter().any(|it| matches!(it, Action::Settle(..))),
        "{actions:?}"
    );
}
