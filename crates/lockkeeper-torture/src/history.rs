//! What all processes believed, read back from their files.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use crate::{Trouble, keys};

/// One guard, as its holder saw it. Times are nanoseconds of the clock that all processes share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Belief {
    /// The history it stands in, and its number there.
    pub who: (String, u64),
    /// What was locked, and the fence of each.
    pub keys: Vec<(String, u64)>,
    /// How much of the room it takes.
    pub weight: u32,
    /// How much there is.
    pub capacity: u32,
    /// How each of them came: from the `store`, by a `hand-on` in its process, `warm` again after it was idle, or `joined`.
    pub how: Vec<String>,
    /// When the caller asked.
    pub asked: u64,
    /// When it had the guard.
    pub from: u64,
    /// The last moment at which the guard surely said that it is valid.
    pub sure: Option<u64>,
    /// When it was told that the lock is lost.
    pub told: Option<u64>,
    /// Whether its holder came to an end with it; one that was killed did not.
    pub ended: bool,
}

/// A request that was given up because it had waited for as long as nobody should.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Starved {
    /// The history it stands in.
    pub who: String,
    /// What was asked for.
    pub key: String,
    /// When.
    pub asked: u64,
    /// When it was given up.
    pub until: u64,
}

/// A process stood in the store's line for a lock, and was given it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stood {
    /// The history it stands in.
    pub who: String,
    /// What was waited for.
    pub key: String,
    /// When the store had surely given it a place.
    pub from: u64,
    /// When it was given the lock.
    pub until: u64,
}

/// What all processes believed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct History {
    /// Every guard, in no order.
    pub beliefs: Vec<Belief>,
    /// Where a guard and the news of its loss contradicted each other.
    pub late: Vec<String>,
    /// Requests that ended without a guard, by how.
    pub failed: BTreeMap<String, u64>,
    /// Those that waited too long.
    pub starved: Vec<Starved>,
    /// How long processes stood in line.
    pub stood: Vec<Stood>,
}

/// What can be given, whether it takes a room, and how it is known.
type Kind<'a> = (&'a str, bool, &'a dyn Fn(&Belief) -> bool);

impl History {
    /// Read all histories in this folder.
    ///
    /// # Errors
    /// If one cannot be read or holds a line that no worker writes.
    pub fn read(folder: &Path) -> Result<Self, Trouble> {
        let mut all = History::default();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "history") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                all.add(&name, &fs::read_to_string(&path)?)?;
            }
        }
        Ok(all)
    }

    /// What nobody was ever given, in words: a struggle in which it does not happen says nothing about it. Rooms only where
    /// the store has any.
    pub fn never_given(&self, has_rooms: bool) -> Vec<String> {
        let is_of = |it: &Belief, name: &str| {
            it.keys.first().is_some_and(|(key, _)| key.rsplit('/').next() == Some(name))
        };
        let kinds: [Kind<'_>; 4] = [
            ("a pair of locks", false, &|it| 1 < it.keys.len()),
            ("a reader's lock", true, &|it| is_of(it, keys::SHARED) && it.weight < it.capacity),
            ("a writer's lock", true, &|it| is_of(it, keys::SHARED) && it.weight == it.capacity),
            ("permits", true, &|it| is_of(it, keys::PERMITS)),
        ];
        let missing = kinds
            .into_iter()
            .filter(|(_, in_rooms, is)| (has_rooms || !in_rooms) && !self.beliefs.iter().any(is));
        let mut missing: Vec<String> = missing.map(|it| format!("nobody was ever given {}", it.0)).collect();
        if self.stood.is_empty() {
            missing.push("nobody was ever given a lock after it had stood in the store's queue".to_owned());
        }
        missing
    }

    fn add(&mut self, name: &str, text: &str) -> Result<(), Trouble> {
        let mut open: HashMap<u64, usize> = HashMap::new();
        // A process that is killed may leave half a line at the end.
        let whole = text.rfind('\n').map_or("", |it| &text[..it]);
        for line in whole.lines() {
            let bad = || Trouble::from(format!("the history {name} holds {line:?}"));
            let (word, rest) = line.split_once(' ').ok_or_else(bad)?;
            if word == "failed" {
                *self.failed.entry(rest.to_owned()).or_default() += 1;
                continue;
            }
            if word == "starved" {
                self.starved.push(starved(name, rest).ok_or_else(bad)?);
                continue;
            }
            if word == "stood" {
                self.stood.push(stood(name, rest).ok_or_else(bad)?);
                continue;
            }
            let (id, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            let id: u64 = id.parse()?;
            if word == "had" {
                open.insert(id, self.beliefs.len());
                self.beliefs.push(belief(name, id, rest).ok_or_else(bad)?);
                continue;
            }
            let it = open.get(&id).and_then(|it| self.beliefs.get_mut(*it)).ok_or_else(bad)?;
            match word {
                "sure" => it.sure = it.sure.max(Some(rest.parse()?)),
                "told" => it.told = Some(rest.parse()?),
                "late" => self.late.push(format!("{name}/{id} {:?}: {rest}", it.keys)),
                "end" => it.ended = true,
                _ => return Err(bad()),
            }
        }
        Ok(())
    }
}

fn starved(name: &str, rest: &str) -> Option<Starved> {
    let (asked, until, key) = span(rest)?;
    Some(Starved { who: name.to_owned(), key, asked, until })
}

fn stood(name: &str, rest: &str) -> Option<Stood> {
    let (from, until, key) = span(rest)?;
    Some(Stood { who: name.to_owned(), key, from, until })
}

fn span(rest: &str) -> Option<(u64, u64, String)> {
    let words: Vec<&str> = rest.splitn(3, ' ').collect();
    let [from, until, key] = words[..] else { return None };
    Some((from.parse().ok()?, until.parse().ok()?, key.to_owned()))
}

fn belief(name: &str, id: u64, rest: &str) -> Option<Belief> {
    let words: Vec<&str> = rest.split(' ').collect();
    let [weight, capacity, asked, from, how, keys] = words[..] else { return None };
    let key =
        |it: &str| it.rsplit_once('=').and_then(|(key, fence)| Some((key.to_owned(), fence.parse().ok()?)));
    Some(Belief {
        who: (name.to_owned(), id),
        keys: keys.split(',').map(key).collect::<Option<_>>()?,
        weight: weight.parse().ok()?,
        capacity: capacity.parse().ok()?,
        how: how.split(',').map(str::to_owned).collect(),
        asked: asked.parse().ok()?,
        from: from.parse().ok()?,
        sure: None,
        told: None,
        ended: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_writes_is_read_back_and_half_a_line_is_left_out() {
        let mut history = History::default();
        let text = "had 1 1 1 10 20 store p/hot=7\nsure 1 25\nfailed cancelled\nstarved 1 61 p/a p/b\nstood 2 9 p/hot\n\
                    had 2 1 3 30 40 warm,store p/a=8,p/b=9\n\
                    sure 1 30\ntold 1 31\nend 1\nlate 2 it says so\nsure 2 4";
        history.add("w", text).unwrap();
        let [one, two] = &history.beliefs[..] else { panic!("{history:?}") };
        assert_eq!((one.sure, one.told, one.ended), (Some(30), Some(31), true));
        assert_eq!(two.keys, [("p/a".to_owned(), 8), ("p/b".to_owned(), 9)]);
        assert_eq!((two.sure, two.ended, two.capacity), (None, false, 3));
        assert_eq!((history.late.len(), history.failed["cancelled"]), (1, 1));
        assert_eq!(two.how, ["warm", "store"]);
        let [starved] = &history.starved[..] else { panic!("{history:?}") };
        assert_eq!((starved.asked, starved.until, starved.key.as_str()), (1, 61, "p/a p/b"));
        let stood = Stood { who: "w".to_owned(), key: "p/hot".to_owned(), from: 2, until: 9 };
        assert_eq!(history.stood, [stood]);
    }

    #[test]
    fn what_nobody_was_given_is_named_where_it_could_have_been() {
        let mut history = History::default();
        let line = "nobody was ever given a lock after it had stood in the store's queue";
        assert_eq!(history.never_given(false), ["nobody was ever given a pair of locks", line]);
        assert_eq!(history.never_given(true).len(), 5);
        history.add("w", "stood 1 2 p/hot\n").unwrap();
        let text = "had 1 1 1 1 1 store,store p/cool-0=1,p/cool-1=1\nhad 2 1 1000 1 1 store p/room=1\n\
                    had 3 1000 1000 1 1 store p/room=2\n";
        history.add("w", text).unwrap();
        assert_eq!(history.never_given(true), ["nobody was ever given permits"]);
        history.add("w", "had 1 3 3 1 1 store p/permits=2\n").unwrap();
        assert!(history.never_given(true).is_empty());
    }

    #[test]
    fn a_line_that_no_worker_writes_is_an_error() {
        for text in [
            "nonsense\n",
            "had 1 1\n",
            "sure 5 1\n",
            "had 1 1 1 1 1 store k=1\nsure 1 x\n",
            "starved 1 k\n",
            "stood 1 k\n",
        ] {
            assert!(History::default().add("w", text).is_err(), "{text}");
        }
    }
}
