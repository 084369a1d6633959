//! The order checker: whether locks are nested in opposite orders within this process, which is a deadlock that waits for
//! its moment.
//!
//! A graph of names: an arrow from each that an owner holds to each that it asks for meanwhile. Whoever asks for an arrow
//! against which there is a way already is told of. Kept small: what is beyond the cap is not seen.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use crate::key::Key;
use crate::kit::locked;
use crate::owner::Owner;

/// So many pairs of names are remembered.
const ARROWS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Order(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    /// What each owner holds, once for each guard.
    held: HashMap<u64, Vec<Key>>,
    after: HashMap<Key, HashSet<Key>>,
    arrows: usize,
}

impl Order {
    /// An owner asks for a key. What it holds that was taken after this key elsewhere, the first time that it is seen.
    pub(crate) fn asked(&self, owner: &Owner, key: &Key) -> Vec<Key> {
        let mut book = locked(&self.0);
        let held = book.held.get(&owner.id()).cloned().unwrap_or_default();
        if held.contains(key) {
            return Vec::new();
        }
        let mut crossed = Vec::new();
        for before in held {
            if book.add(&before, key) && book.leads(key, &before) {
                crossed.push(before);
            }
        }
        crossed
    }

    pub(crate) fn granted(&self, owner: &Owner, key: &Key) {
        locked(&self.0).held.entry(owner.id()).or_default().push(key.clone());
    }

    pub(crate) fn given_back(&self, owner: &Owner, key: &Key) {
        let mut book = locked(&self.0);
        let Entry::Occupied(mut held) = book.held.entry(owner.id()) else { return };
        if let Some(at) = held.get().iter().rposition(|it| it == key) {
            held.get_mut().remove(at);
        }
        if held.get().is_empty() {
            held.remove();
        }
    }
}

impl Book {
    /// An arrow. `false` if it was there before, or there is no room for it.
    fn add(&mut self, before: &Key, after: &Key) -> bool {
        if self.after.get(before).is_some_and(|it| it.contains(after)) || ARROWS_MAX <= self.arrows {
            return false;
        }
        self.arrows += 1;
        self.after.entry(before.clone()).or_default().insert(after.clone())
    }

    /// Whether there is a way along the arrows.
    fn leads(&self, from: &Key, to: &Key) -> bool {
        let (mut seen, mut open) = (HashSet::from([from]), vec![from]);
        while let Some(at) = open.pop() {
            for next in self.after.get(at).into_iter().flatten() {
                if next == to {
                    return true;
                }
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    /// One owner takes these one inside the other, and gives all back.
    fn nest(order: &Order, names: &[&str]) -> Vec<String> {
        let owner = Owner::new("it");
        let mut told = Vec::new();
        for name in names {
            told.extend(order.asked(&owner, &key(name)).iter().map(ToString::to_string));
            order.granted(&owner, &key(name));
        }
        for name in names {
            order.given_back(&owner, &key(name));
        }
        told
    }

    #[test]
    fn opposite_orders_are_told_once() {
        let order = Order::default();
        assert!(nest(&order, &["a", "b"]).is_empty());
        assert_eq!(nest(&order, &["b", "a"]), ["b"]);
        assert!(nest(&order, &["b", "a"]).is_empty());
        assert!(locked(&order.0).held.is_empty());
    }

    #[test]
    fn a_way_around_counts_and_the_same_order_does_not() {
        let order = Order::default();
        assert!(nest(&order, &["a", "b"]).is_empty());
        assert!(nest(&order, &["b", "c"]).is_empty());
        assert!(nest(&order, &["a", "c"]).is_empty());
        assert_eq!(nest(&order, &["c", "a"]), ["c"]);
        assert!(nest(&order, &["d", "a", "d"]).is_empty(), "the same again is no nesting");
    }

    #[test]
    fn what_is_beyond_the_cap_is_not_kept() {
        let order = Order::default();
        for number in 0..ARROWS_MAX + 10 {
            nest(&order, &["a", &format!("b{number}")]);
        }
        assert_eq!(locked(&order.0).arrows, ARROWS_MAX);
        assert!(nest(&order, &["late", "later"]).is_empty() && nest(&order, &["later", "late"]).is_empty());
    }
}
