//! What the overview tells of all locks together, and whether two looks at them differ in more than that time went by.

use std::time::Duration;

use super::pages::Choice;
use crate::view::{Holder, Lock};
use crate::watch::{Seen, differ};

/// Numbers of some locks, and those that stand out.
#[derive(Debug)]
pub(super) struct Figures<'a> {
    count: usize,
    pub(super) held: usize,
    pub(super) waiting: usize,
    pub(super) oldest: Option<Hold<'a>>,
    pub(super) shortest: Option<Hold<'a>>,
    /// What most wait for, and how many.
    pub(super) longest: Option<(&'a str, usize)>,
}

/// A lock and one of its holders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold<'a> {
    pub(super) name: &'a str,
    pub(super) by: &'a Holder,
}

impl<'a> Figures<'a> {
    pub(super) fn of(locks: &[&'a Lock]) -> Self {
        let holds = || locks.iter().flat_map(|it| it.holders.iter().map(|by| Hold { name: &it.name, by }));
        let waiting = locks.iter().filter(|it| 0 < it.waiting());
        Figures {
            count: locks.len(),
            held: locks.iter().filter(|it| !it.holders.is_empty()).count(),
            waiting: locks.iter().map(|it| it.waiting()).sum(),
            oldest: holds().filter(|it| it.by.held_for_ms.is_some()).max_by_key(|it| it.by.held_for_ms),
            shortest: holds().min_by_key(|it| it.by.who.valid_for_ms),
            longest: waiting.map(|it| (it.name.as_str(), it.waiting())).max_by_key(|it| it.1),
        }
    }
}

/// Two are the same if they count the same. Which hold is the oldest is not asked: those that began together take turns.
impl PartialEq for Figures<'_> {
    fn eq(&self, other: &Self) -> bool {
        let counted = |it: &Self| (it.count, it.held, it.waiting, it.longest.map(|it| it.1));
        counted(self) == counted(other)
    }
}

/// Whether a page of these locks would show something else: its rows, or how many there are beyond them.
pub(super) fn is_news(choice: &Choice, told: &Seen, seen: &Seen) -> bool {
    let between: Duration = seen.as_of - told.as_of;
    told.trouble.is_some() != seen.trouble.is_some()
        || Figures::of(&choice.all(&told.locks)) != Figures::of(&choice.all(&seen.locks))
        || differ(&choice.of(&told.locks), &choice.of(&seen.locks), between)
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::inspect::Inspect as _;
    use lockkeeper_core::{Clock, Locker, Memory};

    use super::*;

    /// What a page can see beyond its last row.
    #[tokio::test]
    async fn a_change_beyond_the_last_row_is_news() {
        let store = Memory::default();
        let locker = Locker::new(store.clone());
        let look = async || {
            let infos = store.list("").await.unwrap();
            let mut locks: Vec<Lock> = infos.iter().map(Lock::of).collect();
            locks.sort_by(|one, other| one.name.cmp(&other.name));
            let at = Clock::boot().now();
            Seen { locks, at, as_of: at, trouble: None }
        };
        let mut held = Vec::new();
        for number in 0..600 {
            held.push(locker.lock(format!("many/{number:04}")).await.unwrap());
        }
        let (choice, full) = (Choice::default(), look().await);
        assert!(!is_news(&choice, &full, &look().await));
        assert_eq!(choice.of(&full.locks).last().unwrap().name, "many/0499");
        drop(held.pop());
        let fewer = look().await;
        assert!(is_news(&choice, &full, &fewer), "one is not held any more");
        assert!(!is_news(&Choice::read("q=00").unwrap(), &full, &fewer), "it is none of these");
        drop(held.remove(550));
        held.push(locker.lock("many/0599").await.unwrap());
        assert!(!is_news(&choice, &fewer, &look().await), "as many as before, and none that is shown");
    }
}
