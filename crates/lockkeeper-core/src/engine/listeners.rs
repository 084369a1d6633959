//! Those who await the loss of a tenure, or the end of their guard.

use std::task::{Context, Waker};

/// Boxed, because most tenures have none.
#[derive(Default)]
pub(super) struct Listeners(Option<Box<List>>);

#[derive(Default)]
struct List {
    wakers: Vec<(u64, Waker)>,
    made: u64,
}

impl Listeners {
    /// One more, or the same again. `ticket` is its own, `None` at first.
    pub(super) fn add(&mut self, ticket: &mut Option<u64>, cx: &Context<'_>) {
        let List { wakers, made } = &mut **self.0.get_or_insert_default();
        let mine = ticket.and_then(|id| wakers.iter_mut().find(|it| it.0 == id));
        if let Some((_, waker)) = mine {
            waker.clone_from(cx.waker());
        } else {
            *made += 1;
            wakers.push((*made, cx.waker().clone()));
            *ticket = Some(*made);
        }
    }

    pub(super) fn remove(&mut self, ticket: u64) {
        if let Some(list) = &mut self.0 {
            list.wakers.retain(|it| it.0 != ticket);
        }
    }

    /// Wake all of them, where no lock is held.
    pub(super) fn wake(self) {
        self.0.into_iter().flat_map(|it| it.wakers).for_each(|(_, waker)| waker.wake());
    }
}
