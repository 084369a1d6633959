//! Which cluster is ours: the one that most of the named nodes belong to. Nodes of another one are not used.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_core::kit::locked;

use tonic::Status;

/// What a node says of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// The node, by its number in the URL.
    pub(crate) at: usize,
    pub(crate) cluster: u64,
    pub(crate) members: usize,
}

/// What is known after some nodes have answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This one is ours.
    Ours(u64),
    /// Others may still answer.
    Open,
    /// They disagree, or too few have answered to know.
    Unclear,
}

/// Judge by what the nodes said. `all` is whether nobody else will answer.
///
/// More than half of the named nodes decide. Where fewer answer they must agree, and be half of those named or belong
/// to a cluster that is large enough to hold them all: a node that was wiped and started by itself is neither.
pub(crate) fn judge(named: usize, words: &[Word], all: bool) -> Verdict {
    let mut votes = BTreeMap::new();
    for word in words {
        *votes.entry(word.cluster).or_insert(0_usize) += 1;
    }
    if let Some((cluster, _)) = votes.iter().find(|it| named < it.1 * 2) {
        return Verdict::Ours(*cluster);
    }
    if !all {
        return Verdict::Open;
    }
    match words {
        [first, ..] if votes.len() == 1 && (named <= words.len() * 2 || named <= first.members) => {
            Verdict::Ours(first.cluster)
        }
        _ => Verdict::Unclear,
    }
}

/// The cluster that is ours, and the nodes that turned out to belong to another.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// 0 until it is known. Acquire and Release are more than enough: answers are judged by this number alone.
    id: AtomicU64,
    strangers: Mutex<BTreeMap<usize, u64>>,
}

impl Cluster {
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, id: u64, words: &[Word]) {
        self.id.store(id, Ordering::Release);
        let strangers = words.iter().filter(|it| it.cluster != id).map(|it| (it.at, it.cluster));
        *locked(&self.strangers) = strangers.collect();
    }

    /// Whether an answer of this node, which names this cluster, may be used.
    pub(crate) fn admits(&self, at: usize, cluster: u64) -> bool {
        let id = self.id();
        let ours = id == 0 || cluster == 0 || cluster == id;
        let mut strangers = locked(&self.strangers);
        if !ours {
            strangers.insert(at, cluster);
        } else if !strangers.is_empty() {
            strangers.remove(&at);
        }
        ours
    }

    /// What to tell of the nodes that belong to another cluster; nothing if there are none.
    pub(crate) fn about_strangers(&self, endpoints: &[String]) -> String {
        let mut text = String::new();
        for (at, cluster) in &*locked(&self.strangers) {
            let name = endpoints.get(*at).map_or("a node", String::as_str);
            let _ = write!(text, "; {name} belongs to another cluster ({cluster:x}) and is not used");
        }
        text
    }
}

/// The words of the nodes, for people.
pub(crate) fn told(endpoints: &[String], words: &[Word]) -> String {
    let word = |it: &Word| {
        let name = endpoints.get(it.at).map_or("a node", String::as_str);
        format!("{name} belongs to the cluster {:x} of {}", it.cluster, it.members)
    };
    words.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// The answer came from a node of another cluster.
pub(crate) fn strange() -> Status {
    Status::unavailable(STRANGE)
}

/// Whether this is [`strange`].
pub(crate) fn is_strange(status: &Status) -> bool {
    status.message() == STRANGE
}

const STRANGE: &str = "the node that answered belongs to another cluster";

#[cfg(test)]
mod tests {
    use super::*;

    fn words(said: &[(u64, usize)]) -> Vec<Word> {
        said.iter().enumerate().map(|(at, &(cluster, members))| Word { at, cluster, members }).collect()
    }

    #[test]
    fn most_of_the_named_nodes_decide() {
        assert_eq!(judge(3, &words(&[(7, 1), (9, 3), (9, 3)]), false), Verdict::Ours(9));
        assert_eq!(judge(3, &words(&[(7, 1), (9, 3)]), false), Verdict::Open);
        assert_eq!(judge(3, &words(&[(7, 1), (9, 3)]), true), Verdict::Unclear);
        assert_eq!(judge(1, &words(&[(7, 1)]), false), Verdict::Ours(7));
    }

    #[test]
    fn a_node_alone_is_believed_if_nobody_who_is_named_could_be_missing() {
        assert_eq!(judge(3, &words(&[(7, 1)]), true), Verdict::Unclear, "wiped, and started by itself");
        assert_eq!(judge(3, &words(&[(7, 3)]), true), Verdict::Ours(7), "the others are down");
        assert_eq!(judge(2, &words(&[(7, 1)]), true), Verdict::Ours(7), "one of two names is wrong");
        assert_eq!(judge(3, &[], true), Verdict::Unclear);
    }

    #[test]
    fn a_stranger_is_named_until_it_answers_as_one_of_us() {
        let (cluster, names) = (Cluster::default(), ["a:1".to_owned(), "b:2".to_owned()]);
        assert!(cluster.admits(0, 5), "nothing is known yet");
        cluster.set(7, &words(&[(7, 1)]));
        assert!(!cluster.admits(1, 9));
        assert!(cluster.about_strangers(&names).contains("b:2 belongs to another cluster (9)"));
        assert!(cluster.admits(1, 7));
        assert_eq!(cluster.about_strangers(&names), "");
        assert!(cluster.admits(0, 0), "an answer that does not say");
    }
}
