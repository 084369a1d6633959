//! The names of our keys, used again and again.
//!
//! etcd remembers every name that was ever used until it is compacted, and each look at a line passes over all of
//! them. A name for every claim would make a lock slower with every time that it is taken. So claims of one lease
//! in one line take the lowest names that are free: one process that takes a lock a million times uses one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use bytes::Bytes;
use lockkeeper_core::ClaimId;
use lockkeeper_core::kit::locked;

/// The names that claims of one lease have, line by line.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<HashMap<Bytes, Line>>);

#[derive(Debug, Default)]
struct Line {
    taken: HashMap<ClaimId, Taken>,
    /// Numbers below `next` that nobody has.
    free: Vec<u32>,
    next: u32,
}

#[derive(Debug)]
struct Taken {
    number: u32,
    /// How many places of this process stand for the claim.
    places: u32,
}

impl Names {
    /// The number of this claim's name in this line. Every call must be followed by one of [`Names::give_back`], but
    /// only once it is certain that no key with this name is left or can still come.
    pub(crate) fn take(&self, line: &Bytes, id: ClaimId) -> u32 {
        let mut lines = locked(&self.0);
        let line = lines.entry(line.clone()).or_default();
        if let Some(taken) = line.taken.get_mut(&id) {
            taken.places += 1;
            return taken.number;
        }
        let number = line.free.pop().unwrap_or_else(|| {
            line.next += 1;
            line.next - 1
        });
        line.taken.insert(id, Taken { number, places: 1 });
        number
    }

    /// Take the name with this number, if nobody has it, for as long as its key is removed. Answers who has it then.
    pub(crate) fn take_stray(&self, line: &Bytes, number: u32) -> Option<ClaimId> {
        let id = ClaimId::random().ok()?;
        let mut lines = locked(&self.0);
        let of_line = lines.entry(line.clone()).or_default();
        if of_line.taken.values().any(|it| it.number == number) {
            return None;
        }
        of_line.free.retain(|it| *it != number);
        of_line.free.extend(of_line.next..number);
        of_line.next = of_line.next.max(number + 1);
        of_line.taken.insert(id, Taken { number, places: 1 });
        Some(id)
    }

    /// Whether another place of this process stands for the claim, too.
    pub(crate) fn is_shared(&self, line: &Bytes, id: ClaimId) -> bool {
        locked(&self.0).get(line).and_then(|it| it.taken.get(&id)).is_some_and(|it| 1 < it.places)
    }

    /// One place of this claim has left for sure.
    pub(crate) fn give_back(&self, line: &Bytes, id: ClaimId) {
        let mut lines = locked(&self.0);
        let Some(of_line) = lines.get_mut(line) else { return };
        let Entry::Occupied(mut taken) = of_line.taken.entry(id) else { return };
        taken.get_mut().places -= 1;
        if taken.get().places == 0 {
            of_line.free.push(taken.remove().number);
        }
        if of_line.taken.is_empty() {
            lines.remove(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_used_again_once_every_place_of_its_claim_has_left() {
        let (names, line, other) = (Names::default(), Bytes::from("line"), Bytes::from("other"));
        let [one, two, three] = [(); 3].map(|()| ClaimId::random().unwrap());
        assert_eq!((names.take(&line, one), names.take(&line, one), names.take(&line, two)), (0, 0, 1));
        assert_eq!(names.take(&other, two), 0, "lines do not meet");
        assert!(names.is_shared(&line, one) && !names.is_shared(&line, two));
        names.give_back(&line, one);
        assert_eq!(names.take(&line, three), 2, "a place of the first is still there");
        names.give_back(&line, one);
        assert_eq!(names.take(&line, one), 0);
        for id in [one, two, three] {
            names.give_back(&line, id);
        }
        names.give_back(&other, two);
        names.give_back(&other, two);
        assert!(locked(&names.0).is_empty(), "what nobody uses is forgotten");
    }

    #[test]
    fn the_name_of_a_stray_is_nobodys_while_it_is_removed() {
        let (names, line) = (Names::default(), Bytes::from("line"));
        let [one, two] = [(); 2].map(|()| ClaimId::random().unwrap());
        assert_eq!(names.take(&line, one), 0);
        assert_eq!(names.take_stray(&line, 0), None, "it is ours");
        let stray = names.take_stray(&line, 2).unwrap();
        assert_eq!(names.take(&line, two), 1);
        names.give_back(&line, stray);
        assert_eq!(names.take(&line, ClaimId::random().unwrap()), 2);
    }
}
