//! A batch in the making: what several tasks want at the same time, gathered by whoever came first.

use std::sync::Mutex;

use lockkeeper_core::kit::locked;

#[derive(Debug)]
pub(crate) struct Batch<T>(Mutex<Vec<T>>);

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Batch(Mutex::default())
    }
}

impl<T> Batch<T> {
    /// Add to the batch. Whoever opens it must gather it.
    pub(crate) fn add(&self, item: T) -> Option<Gatherer<'_, T>> {
        let mut items = locked(&self.0);
        items.push(item);
        // Made only if needed: a gatherer that is dropped empties the batch.
        (items.len() == 1).then(|| Gatherer(Some(self)))
    }
}

/// Takes the batch when everybody who is ready has added to it. If it goes away first the items are
/// dropped, which tells those who wait for them.
#[derive(Debug)]
pub(crate) struct Gatherer<'a, T>(Option<&'a Batch<T>>);

impl<T> Gatherer<'_, T> {
    pub(crate) async fn gather(mut self) -> Vec<T> {
        tokio::task::yield_now().await;
        let batch = self.0.take();
        batch.map(|it| std::mem::take(&mut *locked(&it.0))).unwrap_or_default()
    }
}

impl<T> Drop for Gatherer<'_, T> {
    fn drop(&mut self) {
        if let Some(batch) = self.0 {
            locked(&batch.0).clear();
        }
    }
}

/// Cut into pieces of at most `size`.
pub(crate) fn pieces<T>(mut items: Vec<T>, size: usize) -> Vec<Vec<T>> {
    let mut pieces = Vec::new();
    while !items.is_empty() {
        let rest = items.split_off(items.len().min(size));
        pieces.push(std::mem::replace(&mut items, rest));
    }
    pieces
}
