//! A line as its nodes' names tell it: who stands where, and how much each takes.
//!
//! A node is called `<claim id>-<weight>-<capacity>-<number>`. The number comes from the store and counts from the
//! line's first node. The store's numbers have an end, at which they stick or turn negative, so that two nodes may get
//! the same. Hence nobody whose number is [`NUMBER_END`] or beyond is ever let in: below it no two are alike.
//!
//! A node that stands for one who gave its lock back later is called as that one was, with `.kept` at the end.

use std::collections::HashSet;

use lockkeeper_core::admission;
use lockkeeper_core::{Claim, ClaimId, Load};
use zookeeper_client::Stat;

/// What follows the name of a node whose claim went on as a reader, in the name of the node that says so.
const MARK: &str = ".reader";

/// The node that says that the claim of this one went on as a reader.
pub(crate) fn mark_of(node: &str) -> String {
    format!("{node}{MARK}")
}

/// The node that this one is the mark of, if it is one.
pub(crate) fn marked_by(name: &str) -> Option<&str> {
    name.strip_suffix(MARK)
}

/// What follows the name of a node that stands for one who has gone.
const KEPT: &str = ".kept";

/// The name of the node that takes the place of this one, for the same claim as it weighs now.
pub(crate) fn kept_name(claim: &Claim, node: &str) -> String {
    let number = node.rsplit('-').next().unwrap_or_default();
    format!("{}{number}{KEPT}", name_of(claim))
}

/// The end of the numbers that count, well before that of the store (2³¹ − 1).
pub(crate) const NUMBER_END: i32 = i32::MAX - 0xFFFF;

/// One node of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) id: ClaimId,
    pub(crate) load: Load,
    pub(crate) number: i32,
    /// It stands for one who has gone, and only for a time.
    pub(crate) kept: bool,
}

/// What the name of a claim's node begins with; the store adds the number.
pub(crate) fn name_of(claim: &Claim) -> String {
    format!("{}-{}-{}-", claim.id.to_hex(), claim.load.weight, claim.load.capacity)
}

impl Entry {
    /// Read a name. `None` if it is not one of ours.
    pub(crate) fn read(name: String) -> Option<Self> {
        let mut parts = name.splitn(4, '-');
        let id = ClaimId::from_hex(parts.next()?)?;
        let load = Load::new(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let number = parts.next()?;
        let (number, kept) = number.strip_suffix(KEPT).map_or((number, false), |it| (it, true));
        let number = number.parse().ok()?;
        Some(Entry { name, id, load, number, kept })
    }

    /// Whether its number is one that the store may give twice.
    pub(crate) fn is_beyond(&self) -> bool {
        !(0..NUMBER_END).contains(&self.number)
    }
}

/// The line in its order: first come, first. Names that are not ours are passed over.
pub(crate) fn in_order(names: Vec<String>) -> Vec<Entry> {
    let readers: HashSet<String> = names.iter().filter_map(|it| marked_by(it)).map(str::to_owned).collect();
    let mut line: Vec<Entry> = names.into_iter().filter_map(Entry::read).collect();
    // Negative ones are beyond the end, hence behind all that count.
    line.sort_by_key(|it| it.number.cast_unsigned());
    for it in line.iter_mut().filter(|it| readers.contains(&it.name)) {
        it.load = Load::READER;
    }
    line
}

/// Whether the next node of a folder would get a number that the store may give twice.
///
/// What the store calls the version of the children counts those that came and those that went; it may have overflowed.
pub(crate) fn is_worn_out(folder: &Stat) -> bool {
    let came_twice = folder.cversion.wrapping_add(folder.num_children).cast_unsigned();
    NUMBER_END.cast_unsigned() <= came_twice / 2
}

/// What a look at the line said.
pub(crate) struct Look {
    /// Those who keep us out by their weight.
    pub(crate) blockers: Vec<String>,
    /// Of these, whoever has the room for itself and may go on as a reader.
    pub(crate) alone: Vec<String>,
    /// Of these, whoever stands for one who has gone.
    pub(crate) kept: Vec<String>,
    /// There is one of them, and when it goes we are most likely inside: it had the room for itself, or stood directly
    /// before us who want it for ourselves.
    pub(crate) likely: bool,
    pub(crate) ahead: usize,
    /// Somebody does not fit in.
    pub(crate) wanted: bool,
    /// The capacity that others name, if it is another than ours.
    pub(crate) theirs: Option<u32>,
}

impl Look {
    /// Reckon with a list of the line, without those of whom we know that they are gone. `None` if our node is not
    /// in it.
    pub(crate) fn at(names: Vec<String>, own: &str, gone: &HashSet<String>) -> Option<Self> {
        let mut line = in_order(names);
        line.retain(|it| !gone.contains(&it.name));
        let at = line.iter().position(|it| it.name == own)?;
        let loads: Vec<Load> = line.iter().map(|it| it.load).collect();
        let blockers = admission::blockers(&loads[..at], loads[at]);
        let fills = |it: Load| it.capacity <= it.weight;
        let likely = matches!(blockers[..], [one] if fills(loads[one]) || loads[at].capacity == 1);
        let name = |it: usize| line[it].name.clone();
        let sharing = |it: &usize| fills(loads[*it]) && !line[*it].kept;
        let alone = blockers.iter().copied().filter(sharing).map(name).collect();
        let kept = blockers.iter().copied().filter(|it| line[*it].kept).map(name).collect();
        let blockers = blockers.into_iter().map(name).collect();
        let (wanted, theirs) =
            (admission::inside(&loads) < line.len(), loads[at].differing(loads.iter().copied()));
        Some(Look { blockers, alone, kept, likely, ahead: at, wanted, theirs })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What the store says of a node, as far as it matters here.
    pub(crate) fn folder(cversion: i32, num_children: i32) -> Stat {
        let (czxid, mzxid, pzxid, ctime, mtime) = (1, 1, 1, 1, 1);
        let (version, aversion, ephemeral_owner, data_length) = (0, 0, 0, 0);
        Stat {
            czxid,
            mzxid,
            pzxid,
            ctime,
            mtime,
            version,
            cversion,
            aversion,
            ephemeral_owner,
            data_length,
            num_children,
        }
    }

    fn names(numbers: &[i32]) -> Vec<String> {
        numbers.iter().map(|it| format!("{}-1-4-{it:010}", "0".repeat(32))).collect()
    }

    #[test]
    fn a_line_is_in_order_and_what_is_beyond_the_end_is_behind_it() {
        let numbers = |line: Vec<Entry>| line.iter().map(|it| it.number).collect::<Vec<_>>();
        assert_eq!(numbers(in_order(names(&[7, 3, 12]))), [3, 7, 12]);
        let (last, first) = (i32::MAX, i32::MIN);
        assert_eq!(
            numbers(in_order(names(&[first + 1, 5, last - 1, first, last]))),
            [5, last - 1, last, first, first + 1]
        );
    }

    #[test]
    fn numbers_that_the_store_may_give_twice_do_not_count() {
        let beyond = |number| Entry::read(names(&[number]).remove(0)).unwrap().is_beyond();
        assert!([0, 1, NUMBER_END - 1].into_iter().all(|it| !beyond(it)));
        assert!([NUMBER_END, i32::MAX, i32::MIN, -1].into_iter().all(beyond));
    }

    #[test]
    fn a_folder_tells_how_many_came() {
        let worn_out = |came: i32, there: i32| {
            let cversion = came.wrapping_mul(2).wrapping_sub(there);
            is_worn_out(&folder(cversion, there))
        };
        for there in [0, 1, 700] {
            assert!(
                ![1000, i32::MAX / 2, i32::MAX / 2 + 1, NUMBER_END - 1]
                    .into_iter()
                    .any(|it| worn_out(it, there))
            );
            assert!([NUMBER_END, i32::MAX].into_iter().all(|it| worn_out(it, there)));
        }
        assert!(!worn_out(0, 0));
    }

    #[test]
    fn who_is_known_to_be_gone_keeps_nobody_out() {
        let names: Vec<String> = [4, 9].map(|it| format!("{}-1-1-{it:010}", "0".repeat(32))).to_vec();
        let look = Look::at(names.clone(), &names[1], &HashSet::new()).unwrap();
        assert_eq!((look.blockers, look.ahead), (vec![names[0].clone()], 1));
        let look = Look::at(names.clone(), &names[1], &HashSet::from([names[0].clone()])).unwrap();
        assert_eq!((look.blockers.len(), look.ahead, look.wanted), (0, 0, false));
    }

    #[test]
    fn whoever_is_marked_is_a_reader_where_it_stands() {
        let of = |load: &str, number: i32| format!("{}-{load}-{number:010}", "0".repeat(32));
        let (reader, writer) = ("1-4294967295", "4294967295-4294967295");
        let mut names = vec![of(reader, 7), of("1-1", 3), of(writer, 9), of(reader, 12)];
        let alone = |names: &[String], at: usize| {
            Look::at(names.to_vec(), &names[at], &HashSet::new()).unwrap().alone
        };
        assert_eq!(alone(&names, 0), [names[1].clone()], "that one can be marked");
        names.push(mark_of(&names[1]));
        let line = in_order(names.clone());
        assert_eq!(line.iter().map(|it| it.number).collect::<Vec<_>>(), [3, 7, 9, 12]);
        assert_eq!(line[0].load, Load::READER);
        assert!(Look::at(names.clone(), &names[0], &HashSet::new()).unwrap().blockers.is_empty());
        assert_eq!(alone(&names, 3), [names[2].clone()], "the writer waits, and keeps out who is behind it");
        assert!(alone(&names, 2).is_empty(), "a reader is in its way, which cannot be marked again");
    }

    #[test]
    fn what_is_kept_stands_where_its_holder_stood() {
        let mut names = names(&[3, 7]);
        let claim =
            Claim::new(lockkeeper_core::Key::new("k").unwrap(), std::time::Duration::from_secs(1)).unwrap();
        names[0] = kept_name(&claim, &names[0]);
        let line = in_order(names.clone());
        assert_eq!(
            (line[0].number, line[0].id, line[0].load, line[0].kept),
            (3, claim.id, Load::MUTEX, true)
        );
        let look = Look::at(names.clone(), &names[1], &HashSet::new()).unwrap();
        assert_eq!((look.blockers, look.kept), (vec![names[0].clone()], vec![names[0].clone()]));
    }

    #[test]
    fn what_is_not_ours_is_passed_over() {
        let foreign = ["lock-0000000001", "", "zz-1-1-0000000001", "-----"].map(str::to_owned).to_vec();
        assert_eq!(in_order(foreign), []);
        let entry = Entry::read(format!("{}-2-3-0000000009", "a".repeat(32))).unwrap();
        assert_eq!((entry.load, entry.number, entry.kept), (Load::new(2, 3), 9, false));
    }
}
