//! The protocol of Redlock as events in a world, with a switch for every precaution.

use stateright::{Model, Property};

use super::world::{
    BEGINNING, COUNTS_PER_TICK, Client, Known, MAJORITY, NODES, NodeState, Phase, Renewal, TTL, World,
};

pub(crate) const ONE_HOLDER: &str = "at most one client holds the lock";
pub(crate) const FENCES_GROW: &str = "fences grow from grant to grant";
/// The protocol, its precautions, and how far to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redlock {
    pub(crate) clients: u8,
    /// How often each client may try.
    pub(crate) attempts: u8,
    /// How often nodes may restart, all together.
    pub(crate) restarts: u8,
    /// How many answers may be lost. Requests may always be.
    pub(crate) losses: u8,
    /// How many calls of attempts that were given up may still take a node.
    pub(crate) strays: u8,
    /// When the world ends.
    pub(crate) end: u8,
    /// How often holders may renew, each.
    pub(crate) renewals: u8,
    /// How often a holder may take back a node that forgot, all together.
    pub(crate) retakes: u8,
    pub(crate) second_round: bool,
    /// How old a node's memory must be for its vote to count; 0 switches the guard off.
    pub(crate) guard: u8,
    pub(crate) fresh_ids: bool,
    pub(crate) clock_counters: bool,
    /// Whether a node's `turn` tells a counter above all that were raised there. Otherwise its clock is all it
    /// goes by, and only `raise` tells of a larger one; the second round is then repeated.
    pub(crate) turn_outdoes: bool,
}

pub(crate) const SOUND: Redlock = Redlock {
    clients: 2,
    attempts: 2,
    restarts: 1,
    losses: 1,
    strays: 0,
    end: BEGINNING + TTL + 1,
    renewals: 0,
    retakes: 0,
    second_round: true,
    guard: TTL,
    fresh_ids: true,
    clock_counters: true,
    turn_outdoes: true,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    TimePasses,
    /// A node forgets everything.
    Restart {
        node: usize,
    },
    Ask {
        client: u8,
    },
    /// A node gives the lock to a client that asks.
    Give {
        node: usize,
        client: u8,
        answer_lost: bool,
    },
    /// A majority has given it: begin the second round.
    Confirm {
        client: u8,
    },
    /// A node lifts its counter and confirms.
    Raise {
        node: usize,
        client: u8,
        answer_lost: bool,
    },
    /// A majority has confirmed it.
    Hold {
        client: u8,
    },
    Renew {
        client: u8,
    },
    /// A node renews.
    Prolong {
        node: usize,
        client: u8,
    },
    /// A node that forgot gives the lock to its holder again, under the holder's counter.
    Retake {
        node: usize,
        client: u8,
    },
    /// A majority has renewed it.
    Extend {
        client: u8,
    },
    /// Give up an attempt, or release the lock.
    Leave {
        client: u8,
    },
    /// A node hears that an attempt was given up.
    Free {
        node: usize,
    },
    /// A node hears of an attempt that was given up already.
    Stray {
        node: usize,
        client: u8,
    },
}

impl Redlock {
    /// The name under which nodes know an attempt.
    pub(crate) fn id(self, client: u8, attempt: u8) -> (u8, u8) {
        (client, if self.fresh_ids { attempt } else { 0 })
    }

    pub(crate) fn id_now(self, world: &World, client: u8) -> (u8, u8) {
        self.id(client, world.client(client).attempt)
    }

    /// Whether the vote of a node counts for an attempt begun at `since`.
    pub(crate) fn may_vote(self, node: &NodeState, since: u8) -> bool {
        self.guard == 0 || node.born + self.guard <= since
    }

    /// What a node's clock says, as a counter.
    pub(crate) fn clock(self, node: usize, now: u8) -> u8 {
        let ahead = u8::from(node == 0);
        if self.clock_counters { (now + ahead) * COUNTS_PER_TICK } else { 0 }
    }

    /// What a node does when it is asked and is free. Its clock makes its counters grow also after a restart.
    pub(crate) fn give(self, world: &mut World, at: usize, id: (u8, u8)) {
        let (now, clock) = (world.now, self.clock(at, world.now));
        let node = &mut world.nodes[at];
        if self.turn_outdoes {
            node.counter = (node.counter + 1).max(clock);
        }
        (node.holder, node.expires, node.raised) = (Some(id), now + TTL, false);
    }

    /// What a node does when its counter is to be raised for whom it holds. Tells the counter it knows then.
    pub(crate) fn raise(self, node: &mut NodeState, counter: u8) -> u8 {
        if self.turn_outdoes {
            node.counter = node.counter.max(counter);
            return counter;
        }
        node.counter = counter.max(if node.raised { node.counter } else { node.counter + 1 });
        node.raised = true;
        node.counter
    }

    pub(crate) fn hold(self, world: &mut World, client: u8, since: u8, fence: u8) {
        world.went_back |= fence <= world.last_fence;
        world.last_fence = fence;
        let (until, renewal) = (since + TTL, Renewal::Left(self.renewals));
        let fence = if 0 < self.retakes { fence } else { 0 };
        world.enter(client, Phase::Holding { until, renewal, fence });
    }

    /// What a client may do of its own.
    pub(crate) fn client_events(self, world: &World, client: u8, events: &mut Vec<Event>) {
        let Client { attempt, phase } = *world.client(client);
        let in_time = |since: u8| world.now < since + TTL;
        match phase {
            Phase::Idle if attempt < self.attempts => events.push(Event::Ask { client }),
            Phase::Idle => {}
            Phase::Asking { since } => {
                events.push(Event::Leave { client });
                if MAJORITY <= world.count(client, |it| matches!(it, Known::Gave(_))) && in_time(since) {
                    events.push(Event::Confirm { client });
                }
            }
            Phase::Confirming { since, .. } => {
                events.push(Event::Leave { client });
                if MAJORITY <= world.count(client, |it| it == Known::Confirmed) && in_time(since) {
                    events.push(Event::Hold { client });
                }
            }
            Phase::Holding { renewal, .. } => {
                events.push(Event::Leave { client });
                match renewal {
                    Renewal::Left(0) => {}
                    Renewal::Left(_) => events.push(Event::Renew { client }),
                    Renewal::Since { .. } if MAJORITY <= world.count(client, |it| it == Known::Renewed) => {
                        events.push(Event::Extend { client });
                    }
                    Renewal::Since { .. } => {}
                }
            }
        }
    }

    /// What a node may do for a client.
    pub(crate) fn node_events(self, world: &World, node: usize, client: u8, events: &mut Vec<Event>) {
        let (state, Client { phase, attempt }) = (&world.nodes[node], *world.client(client));
        let ours = state.holder == Some(self.id_now(world, client));
        let known = state.known[usize::from(client)];
        let lossy = usize::from(world.losses < self.losses);
        let answers = |event: fn(usize, u8, bool) -> Event| {
            [false, true].map(|it| event(node, client, it)).into_iter().take(1 + lossy)
        };
        match phase {
            // Who says no changes nothing, and need not be asked.
            Phase::Asking { .. } if known == Known::Nothing && (state.holder.is_none() || ours) => {
                events.extend(answers(|node, client, answer_lost| Event::Give { node, client, answer_lost }));
            }
            Phase::Confirming { counter, .. }
                if ours && matches!(known, Known::Gave(it) if it <= counter) =>
            {
                events.extend(answers(|node, client, answer_lost| Event::Raise {
                    node,
                    client,
                    answer_lost,
                }));
            }
            Phase::Holding { renewal: Renewal::Since { .. }, .. } if ours && known == Known::Nothing => {
                events.push(Event::Prolong { node, client });
            }
            // Whether a majority has just renewed does not matter here: it is taken back more often than in truth.
            Phase::Holding { .. }
                if state.holder.is_none()
                    && world.retakes < self.retakes
                    && self.may_vote(state, world.now) =>
            {
                events.push(Event::Retake { node, client });
            }
            _ => {}
        }
        if 0 < attempt && state.holder.is_none() && world.strays < self.strays {
            events.push(Event::Stray { node, client });
        }
    }
}

impl Model for Redlock {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let known = vec![Known::Nothing; usize::from(self.clients)];
        let node = NodeState { born: 0, counter: 0, raised: false, holder: None, expires: 0, known };
        vec![World {
            now: BEGINNING,
            restarts: 0,
            losses: 0,
            strays: 0,
            retakes: 0,
            last_fence: 0,
            went_back: false,
            clients: vec![Client { attempt: 0, phase: Phase::Idle }; usize::from(self.clients)],
            nodes: std::array::from_fn(|_| node.clone()),
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        let idle = |it: &Client| it.phase == Phase::Idle && it.attempt == self.attempts;
        if world.clients.iter().all(idle) {
            return;
        }
        if world.now < self.end {
            events.push(Event::TimePasses);
        }
        for client in 0..self.clients {
            self.client_events(world, client, events);
        }
        for node in 0..NODES {
            if world.restarts < self.restarts {
                events.push(Event::Restart { node });
            }
            if let Some((client, attempt)) = world.nodes[node].holder
                && attempt < world.client(client).attempt
            {
                events.push(Event::Free { node });
            }
            for client in 0..self.clients {
                self.node_events(world, node, client, events);
            }
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        match event {
            Event::TimePasses => next.time_passes(),
            Event::Restart { node } => {
                next.restarts += 1;
                let it = &mut next.nodes[node];
                (it.born, it.counter, it.holder) = (world.now, 0, None);
            }
            Event::Ask { client } => next.enter(client, Phase::Asking { since: world.now }),
            Event::Give { node, client, answer_lost } => {
                let Phase::Asking { since } = world.client(client).phase else { return None };
                self.give(&mut next, node, self.id_now(world, client));
                next.losses += u8::from(answer_lost);
                // Without a second round it is the first that must tell how old the node is.
                let counts = self.second_round || self.may_vote(&world.nodes[node], since);
                let told =
                    if self.turn_outdoes { next.nodes[node].counter } else { self.clock(node, world.now) };
                next.learn(node, client, Known::Gave(told), answer_lost || !counts);
            }
            Event::Confirm { client } => {
                let Phase::Asking { since } = world.client(client).phase else { return None };
                let counter = world.first_counter(client);
                if self.second_round {
                    // What was given stays known: only those nodes are asked again.
                    next.clients[usize::from(client)].phase = Phase::Confirming { since, counter };
                } else {
                    self.hold(&mut next, client, since, counter);
                }
            }
            Event::Raise { node, client, answer_lost } => {
                let Phase::Confirming { since, counter } = world.client(client).phase else { return None };
                let told = self.raise(&mut next.nodes[node], counter);
                next.losses += u8::from(answer_lost);
                let unheard = answer_lost || !self.may_vote(&world.nodes[node], since);
                if counter < told && !unheard {
                    next.confirm_again(client, since, told);
                }
                next.learn(node, client, Known::Confirmed, unheard);
            }
            Event::Hold { client } => {
                let Phase::Confirming { since, counter } = world.client(client).phase else { return None };
                self.hold(&mut next, client, since, counter);
            }
            Event::Renew { client } => {
                let Phase::Holding { until, renewal: Renewal::Left(left), fence } =
                    world.client(client).phase
                else {
                    return None;
                };
                let renewal = Renewal::Since { since: world.now, left: left - 1 };
                next.enter(client, Phase::Holding { until, renewal, fence });
            }
            Event::Prolong { node, client } => {
                next.nodes[node].expires = world.now + TTL;
                next.learn(node, client, Known::Renewed, false);
            }
            Event::Retake { node, client } => {
                let Phase::Holding { fence, .. } = world.client(client).phase else { return None };
                next.retakes += 1;
                self.give(&mut next, node, self.id_now(world, client));
                self.raise(&mut next.nodes[node], fence);
            }
            Event::Extend { client } => {
                let Phase::Holding { renewal: Renewal::Since { since, left }, fence, .. } =
                    world.client(client).phase
                else {
                    return None;
                };
                let (until, renewal) = (since + TTL, Renewal::Left(left));
                next.enter(client, Phase::Holding { until, renewal, fence });
            }
            Event::Leave { client } => next.end_attempt(client),
            Event::Free { node } => next.nodes[node].holder = None,
            Event::Stray { node, client } => {
                next.strays += 1;
                self.give(&mut next, node, self.id(client, world.client(client).attempt - 1));
            }
        }
        Some(next.simplest(*self))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, world: &World| world.holders() <= 1),
            Property::always(FENCES_GROW, |_, world: &World| !world.went_back),
            Property::sometimes("a client holds", |_, world: &World| 0 < world.holders()),
            Property::sometimes("every node that may be is taken back", |model: &Redlock, world: &World| {
                world.retakes == model.retakes
            }),
        ]
    }
}
