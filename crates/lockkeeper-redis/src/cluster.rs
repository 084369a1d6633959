//! Which cluster is ours: the one that most of the named and known nodes are in. Nodes of another one are not used.
//!
//! A cluster of Redis has no name of its own. Its nodes have, and each tells the names and addresses of those that it
//! believes to be in it. A node that was wiped and made a cluster by itself knows none of the others any more.

use std::sync::Arc;

use redis::Value;

use crate::dial::Range;
use crate::options::Host;

/// The nodes of a cluster as one of them tells it: those that keep slots, and their replicas that work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Each with its id.
    all: Vec<(String, Host)>,
    /// The ids of those that keep slots.
    keepers: Vec<String>,
}

/// What a server tells of its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) ranges: Arc<[Range]>,
    pub(crate) members: Arc<Members>,
}

/// What is known after some servers have answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This answer is of our cluster.
    Ours(usize),
    /// Others may still answer.
    Open,
    /// They disagree, or those who answered may be strangers.
    Unclear,
}

/// Judge by what the servers told, each with its address. `all` is whether nobody else will answer.
///
/// The answer in whose cluster more than half of the electors are decides: because it tells their addresses, or because
/// they answered themselves and are of the same. That may never come, where many are down, or known to us by other
/// addresses than to each other. Then the answers must agree, and come from a cluster that is large enough.
pub(crate) fn judge(electors: &[Host], words: &[(Host, Told)], all: bool) -> Verdict {
    let same =
        |told: &Told, host: &Host| words.iter().any(|it| it.0 == *host && it.1.members.is_kin(&told.members));
    let inside = |told: &Told| electors.iter().filter(|it| told.members.has(it) || same(told, it)).count();
    if let Some(at) = words.iter().position(|it| electors.len() < 2 * inside(&it.1)) {
        return Verdict::Ours(at);
    }
    if !all {
        return Verdict::Open;
    }
    let [first, others @ ..] = words else { return Verdict::Unclear };
    let members = first.1.members.all.len();
    let agree = others.iter().all(|it| it.1.members.is_kin(&first.1.members));
    if agree && 1 < members && electors.len() <= 2 * members { Verdict::Ours(0) } else { Verdict::Unclear }
}

/// The words of the servers, for people.
pub(crate) fn in_words(words: &[(Host, Told)]) -> String {
    let one = |(host, told): &(Host, Told)| match told.members.all.len() {
        1 => format!("{host} is a cluster by itself"),
        count => format!("{host} belongs to a cluster of {count}"),
    };
    words.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl Members {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All addresses that are told.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.all.iter().map(|it| &it.1)
    }

    /// Whether this address is told.
    fn has(&self, host: &Host) -> bool {
        self.hosts().any(|it| it == host)
    }

    /// Whether both are of one cluster: most of those that keep slots in one are in the other. Servers may change places,
    /// and some come and go.
    pub(crate) fn is_kin(&self, other: &Members) -> bool {
        self.knows_most_of(other) && other.knows_most_of(self)
    }

    fn knows_most_of(&self, other: &Members) -> bool {
        let known = other.keepers.iter().filter(|id| self.all.iter().any(|it| it.0 == **id)).count();
        other.keepers.len() < 2 * known
    }
}

/// What `CLUSTER SLOTS` tells, as `asked` tells it: a server without a name is itself.
pub(crate) fn read(answer: &Value, asked: &Host) -> Told {
    let (mut ranges, mut members) = (Vec::new(), Members::default());
    for range in items(answer) {
        let [first, last, nodes @ ..] = items(range) else { continue };
        let mut nodes = nodes.iter().filter_map(|it| node(it, asked)).peekable();
        let (Some(last), Some(first), Some((id, keeper))) = (number(last), number(first), nodes.peek())
        else {
            continue;
        };
        ranges.push((last, first, keeper.clone()));
        members.keepers.push(id.clone());
        members.all.extend(nodes);
    }
    ranges.sort_unstable_by_key(|it| it.0);
    members.keepers.sort_unstable();
    members.keepers.dedup();
    members.all.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    members.all.dedup_by(|one, other| one.0 == other.0);
    Told { ranges: ranges.into(), members: Arc::new(members) }
}

/// Id and address of a node.
fn node(value: &Value, asked: &Host) -> Option<(String, Host)> {
    let [name, port, id, ..] = items(value) else { return None };
    let name = text(name).filter(|it| !it.is_empty()).unwrap_or_else(|| asked.name.clone());
    Some((text(id)?, Host { name, port: number(port)? }))
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(it) => it,
        _ => &[],
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(it) => String::from_utf8(it.clone()).ok(),
        Value::SimpleString(it) => Some(it.clone()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(it) => u16::try_from(*it).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
        Host { name: name.to_owned(), port: 6379 }
    }

    /// Those with a capital letter keep slots. A node is called `id` or `id=address`.
    fn told(nodes: &str) -> Told {
        let mut members = Members::default();
        for node in nodes.split(' ') {
            let (id, address) = node.split_once('=').unwrap_or((node, node));
            if id.starts_with(char::is_uppercase) {
                members.keepers.push(id.to_lowercase());
            }
            members.all.push((id.to_lowercase(), host(&address.to_lowercase())));
        }
        Told { ranges: Arc::from([]), members: Arc::new(members) }
    }

    /// What is judged of `by: nodes` answers.
    fn judged(electors: &str, answers: &[(&str, &str)], all: bool) -> Verdict {
        let electors: Vec<_> = electors.split(' ').map(host).collect();
        let words: Vec<_> = answers.iter().map(|(by, nodes)| (host(by), told(nodes))).collect();
        judge(&electors, &words, all)
    }

    #[test]
    fn the_first_answer_that_tells_most_of_the_electors_decides() {
        assert_eq!(judged("a b c", &[("b", "A x B y C z")], false), Verdict::Ours(0));
        assert_eq!(judged("a b c", &[("a", "NEW=a")], false), Verdict::Open);
        assert_eq!(judged("a b c", &[("a", "NEW=a"), ("c", "X B C")], false), Verdict::Ours(1));
        assert_eq!(judged("a", &[("a", "A")], false), Verdict::Ours(0), "nobody else is named");
        assert_eq!(judged("a b hole", &[("b", "A B")], false), Verdict::Ours(0));
    }

    #[test]
    fn electors_that_are_known_by_other_addresses_decide_by_their_own_answers() {
        let ours = "A=1 B=2 C=3";
        assert_eq!(judged("a b c", &[("a", ours)], false), Verdict::Open);
        assert_eq!(judged("a b c", &[("a", ours), ("c", ours)], false), Verdict::Ours(0));
        assert_eq!(judged("a b c", &[("a", "NEW=9"), ("b", ours), ("c", ours)], false), Verdict::Ours(1));
        assert_eq!(judged("a b c", &[("b", ours)], true), Verdict::Ours(0), "the others are down");
    }

    #[test]
    fn one_that_stands_alone_is_not_believed_although_nobody_else_answers() {
        assert_eq!(judged("a b c", &[("a", "NEW=a")], true), Verdict::Unclear);
        assert_eq!(judged("a b", &[("a", "NEW=a")], true), Verdict::Unclear);
        assert_eq!(
            judged("a b", &[("a", "NEW=a"), ("b", "X B=2 C")], true),
            Verdict::Unclear,
            "they disagree"
        );
        assert_eq!(judged("a b", &[], true), Verdict::Unclear);
    }

    #[test]
    fn of_two_that_are_named_one_is_believed_if_it_does_not_stand_alone() {
        assert_eq!(judged("a b", &[("b", "X B C")], false), Verdict::Open, "the other may still answer");
        assert_eq!(judged("a b", &[("b", "X B C")], true), Verdict::Ours(0));
        assert_eq!(judged("a b", &[("b", "B")], true), Verdict::Unclear);
        assert_eq!(judged("b", &[("b", "B")], true), Verdict::Ours(0), "whoever names one believes it");
    }

    #[test]
    fn half_of_the_nodes_are_enough_where_they_keep_all() {
        assert_eq!(
            judged("a b c x y z", &[("x", "X B C"), ("b", "X B C"), ("c", "X B C")], true),
            Verdict::Ours(0)
        );
    }

    #[test]
    fn a_cluster_is_the_same_while_most_of_it_is() {
        for (one, other, kin) in [
            ("A x B y C z", "A B C", true),
            ("A x B y C z", "X B y C", true),
            ("A B C", "A B C D e F g", true),
            ("A B C", "A", false),
            ("A B C", "NEW", false),
            ("A B", "A", false),
            ("A B C", "A N O P", false),
        ] {
            let (one, other) = (told(one).members, told(other).members);
            assert_eq!(one.is_kin(&other), kin, "{one:?} {other:?}");
            assert_eq!(other.is_kin(&one), kin, "{other:?} {one:?}");
        }
    }

    #[test]
    fn slots_are_read_with_the_nodes_that_keep_and_copy_them() {
        let bulk = |it: &str| Value::BulkString(it.as_bytes().to_vec());
        let node = |name: &str, id: &str| {
            Value::Array(vec![bulk(name), Value::Int(7), bulk(id), Value::Array(vec![])])
        };
        let range = |first, last, nodes: &[Value]| {
            Value::Array([&[Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let answer = Value::Array(vec![
            range(100, 16383, &[node("b", "B"), node("c", "C")]),
            range(0, 99, &[node("", "A")]),
        ]);
        let told = read(&answer, &host("asked"));
        let at = |name: &str| Host { name: name.to_owned(), port: 7 };
        assert_eq!(*told.ranges, [(99, 0, at("asked")), (16383, 100, at("b"))]);
        assert_eq!(told.members.hosts().cloned().collect::<Vec<_>>(), [at("asked"), at("b"), at("c")]);
        assert_eq!(told.members.keepers, ["A", "B"]);
    }
}
