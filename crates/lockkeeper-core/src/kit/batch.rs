//! A batch in the making: what several tasks want at the same time, gathered by whoever came first.

use std::sync::Mutex;

use super::locked::locked;

/// What was asked for since the last batch went.
///
/// For a store whose commands may all be under way at once. Where that must be bounded, take a
/// [`Lane`](super::lane::Lane).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use lockkeeper_core::kit::Batch;
///
/// let batch = Batch::default();
/// let first = batch.add("a").expect("whoever opens a batch gathers it");
/// assert!(batch.add("b").is_none());
/// assert_eq!(first.gather().await, ["a", "b"]);
/// # }
/// ```
#[derive(Debug)]
pub struct Batch<T>(Mutex<Vec<T>>);

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Batch(Mutex::default())
    }
}

impl<T> Batch<T> {
    /// Add to the batch. Whoever opens it must gather it.
    pub fn add(&self, item: T) -> Option<Gatherer<'_, T>> {
        let mut items = locked(&self.0);
        items.push(item);
        // Made only if needed: a gatherer that is dropped empties the batch.
        (items.len() == 1).then(|| Gatherer(Some(self)))
    }
}

/// Takes the batch when everybody who is ready has added to it. If it goes away first the items are
/// dropped, which tells those who wait for them.
///
/// ```
/// let batch = lockkeeper_core::kit::Batch::default();
/// drop(batch.add(1)); // its gatherer is gone, and 1 with it
/// assert!(batch.add(2).is_some(), "whoever comes next opens a new one");
/// ```
#[derive(Debug)]
pub struct Gatherer<'a, T>(Option<&'a Batch<T>>);

impl<T> Gatherer<'_, T> {
    /// Let everybody who is about to ask add to the batch, then take it.
    ///
    /// # Cancel safety
    /// If dropped, the items are dropped too.
    pub async fn gather(mut self) -> Vec<T> {
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

/// Cut into pieces of at most `size`, or of one if that is 0.
///
/// ```
/// assert_eq!(lockkeeper_core::kit::pieces(vec![1, 2, 3], 2), [vec![1, 2], vec![3]]);
/// ```
pub fn pieces<T>(items: Vec<T>, size: usize) -> Vec<Vec<T>> {
    let (size, mut left) = (size.max(1), items.len());
    let mut pieces = Vec::with_capacity(left.div_ceil(size));
    // Each item is moved once, into a piece that has no room for more: to cut off the rest again and again would cost the
    // square of their number, in time and in memory.
    let mut items = items.into_iter();
    while left != 0 {
        let mut piece = Vec::with_capacity(size.min(left));
        piece.extend(items.by_ref().take(size));
        left -= piece.len();
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_items_in_order_and_room_for_no_more() {
        for (count, size) in [(0, 3), (1, 3), (3, 3), (10_000, 256), (5, 0)] {
            let cut = pieces((0..count).collect::<Vec<u32>>(), size);
            assert_eq!(cut.concat(), (0..count).collect::<Vec<u32>>());
            let size = size.max(1);
            assert!(cut.iter().all(|it| !it.is_empty() && it.len() <= size));
            let room: usize = cut.iter().map(Vec::capacity).sum();
            assert_eq!(room, cut.iter().map(Vec::len).sum::<usize>(), "{count} in pieces of {size}");
        }
    }
}
