//! The world of the model: nodes, clients, what they know, and the passing of time.

use super::protocol::Redlock;

pub(crate) const NODES: usize = 3;
pub(crate) const MAJORITY: usize = 2;
pub(crate) const TTL: u8 = 2;
/// Nodes are old at the beginning: they were born at 0.
pub(crate) const BEGINNING: u8 = TTL;
/// Counters come from clocks that are finer than the model's ticks, so that grants do not outrun them.
pub(crate) const COUNTS_PER_TICK: u8 = 8;
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct World {
    pub(crate) now: u8,
    pub(crate) restarts: u8,
    pub(crate) losses: u8,
    pub(crate) strays: u8,
    /// How often a node that forgot was taken back.
    pub(crate) retakes: u8,
    /// The largest fence given so far, and whether a later one was not larger.
    pub(crate) last_fence: u8,
    pub(crate) went_back: bool,
    pub(crate) clients: Vec<Client>,
    pub(crate) nodes: [NodeState; NODES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Client {
    pub(crate) attempt: u8,
    pub(crate) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    Idle,
    Asking {
        since: u8,
    },
    Confirming {
        since: u8,
        counter: u8,
    },
    /// The fence is remembered only where it is needed again.
    Holding {
        until: u8,
        renewal: Renewal,
        fence: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Renewal {
    /// None is under way; so many may follow.
    Left(u8),
    Since {
        since: u8,
        left: u8,
    },
}

/// A node, and what each client knows of it in its present phase.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeState {
    pub(crate) born: u8,
    pub(crate) counter: u8,
    /// Whether its holder has raised the counter.
    pub(crate) raised: bool,
    /// Client and attempt.
    pub(crate) holder: Option<(u8, u8)>,
    pub(crate) expires: u8,
    pub(crate) known: Vec<Known>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Known {
    Nothing,
    /// It was asked and said something that did not arrive.
    AnswerLost,
    Gave(u8),
    Confirmed,
    Renewed,
}

impl World {
    pub(crate) fn client(&self, client: u8) -> &Client {
        &self.clients[usize::from(client)]
    }

    pub(crate) fn count(&self, client: u8, is: impl Fn(Known) -> bool) -> usize {
        self.nodes.iter().filter(|it| is(it.known[usize::from(client)])).count()
    }

    /// The counter to begin the second round with: one that a majority tells alike, or else the largest.
    pub(crate) fn first_counter(&self, client: u8) -> u8 {
        let given = |it: &NodeState| {
            if let Known::Gave(it) = it.known[usize::from(client)] { Some(it) } else { None }
        };
        let mut given: Vec<u8> = self.nodes.iter().filter_map(given).collect();
        given.sort_unstable();
        let agreed = given.windows(MAJORITY).find(|it| it.first() == it.last()).and_then(|it| it.last());
        agreed.or(given.last()).copied().unwrap_or(0)
    }

    pub(crate) fn learn(&mut self, node: usize, client: u8, what: Known, answer_lost: bool) {
        self.nodes[node].known[usize::from(client)] = if answer_lost { Known::AnswerLost } else { what };
    }

    /// A node knows a larger counter: all that confirmed a smaller one are asked again.
    pub(crate) fn confirm_again(&mut self, client: u8, since: u8, counter: u8) {
        self.clients[usize::from(client)].phase = Phase::Confirming { since, counter };
        for node in &mut self.nodes {
            let known = &mut node.known[usize::from(client)];
            if *known == Known::Confirmed {
                *known = Known::Gave(counter);
            }
        }
    }

    /// Go to a phase, in which nothing is known yet.
    pub(crate) fn enter(&mut self, client: u8, phase: Phase) {
        self.clients[usize::from(client)].phase = phase;
        for node in &mut self.nodes {
            node.known[usize::from(client)] = Known::Nothing;
        }
    }

    pub(crate) fn end_attempt(&mut self, client: u8) {
        self.enter(client, Phase::Idle);
        self.clients[usize::from(client)].attempt += 1;
    }

    pub(crate) fn holders(&self) -> usize {
        let holds = |it: &&Client| matches!(it.phase, Phase::Holding { until, .. } if self.now < until);
        self.clients.iter().filter(holds).count()
    }

    pub(crate) fn time_passes(&mut self) {
        self.now += 1;
        for node in &mut self.nodes {
            node.holder = node.holder.filter(|_| self.now < node.expires);
        }
        for client in 0..self.clients.len() {
            let over = match self.clients[client].phase {
                Phase::Idle => false,
                Phase::Asking { since } | Phase::Confirming { since, .. } => since + TTL <= self.now,
                Phase::Holding { until, .. } => until <= self.now,
            };
            if over {
                self.end_attempt(u8::try_from(client).unwrap());
            }
        }
    }

    /// One of all worlds that differ in nothing that matters: in the order of clients, or of nodes 1 and 2,
    /// which are alike; or in what no future event can tell apart.
    pub(crate) fn simplest(mut self, model: Redlock) -> Self {
        let oldest = |it: &Client| match it.phase {
            Phase::Asking { since } | Phase::Confirming { since, .. } => since,
            Phase::Idle | Phase::Holding { .. } => self.now,
        };
        let oldest = self.clients.iter().map(oldest).min().unwrap_or(self.now);
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if node.holder.is_none() {
                (node.expires, node.raised) = (0, false);
            }
            if node.born + model.guard <= oldest {
                node.born = 0;
            }
            if model.turn_outdoes {
                node.counter = node.counter.max(model.clock(at, self.now).saturating_sub(1));
            } else if node.counter < model.clock(at, oldest) {
                node.counter = 0;
            }
        }
        let orders: &[&[u8]] = match self.clients.len() {
            2 => &[&[0, 1], &[1, 0]],
            _ => &[&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
        };
        orders.iter().map(|it| self.renamed(it)).min().unwrap_or(self)
    }

    /// The same world with client `names[i]` in the place of client `i`.
    pub(crate) fn renamed(&self, names: &[u8]) -> Self {
        let mut other = self.clone();
        for (to, &from) in names.iter().enumerate() {
            other.clients[to] = *self.client(from);
            for (node, here) in other.nodes.iter_mut().zip(&self.nodes) {
                node.known[to] = here.known[usize::from(from)];
                if let Some((client, attempt)) = here.holder
                    && client == from
                {
                    node.holder = Some((u8::try_from(to).unwrap(), attempt));
                }
            }
        }
        other.nodes[1..].sort_unstable();
        other
    }
}
