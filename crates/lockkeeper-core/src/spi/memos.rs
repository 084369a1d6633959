//! Memos: small durable values with a version, beside the locks. What must outlive its writer is kept in them: that a job
//! has run, who leads, who has arrived.
//!
//! # Contract
//!
//! Each line is a case of the conformance suite.
//!
//! 1. [`Memos::swap`] writes if, and only if, the memo still is as the caller has seen it: that version, or none.
//! 2. No version of a key is ever given twice, also after the memo is gone.
//! 3. A memo is kept at least as long as its writer said, by the store's clock, and is gone after that. Zero removes it.
//! 4. `Err` means *unknown*. Reading tells: whoever writes puts something of its own into the value.
//! 5. [`Memos::changed`] may be early, late, silent, or dropped half-way.
//! 6. Memos and locks of the same name have nothing to do with each other.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::clock::Clock;
use crate::key::Key;
use crate::spi::fault::Result;

/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// After how long whoever waits for a change looks, where the store does not tell: soon at first, then less often.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A value that a store keeps under a key.
///
/// ```
/// use lockkeeper_core::memos::Memo;
///
/// let memo = Memo::new(7, b"done".to_vec());
/// assert_eq!((memo.version, memo.value.as_slice()), (7, b"done".as_slice()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memo {
    /// Another for every write.
    pub version: u64,
    /// What was written, at most [`VALUE_BYTES_MAX`].
    pub value: Vec<u8>,
}

impl Memo {
    /// A memo as it was read.
    pub const fn new(version: u64, value: Vec<u8>) -> Self {
        Memo { version, value }
    }
}

/// The answer to [`Memos::swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Swap {
    /// It was written, under this version.
    Done(u64),
    /// Somebody else wrote or removed it before: this is what there is now.
    Conflict(Option<Memo>),
}

/// A store that keeps memos. A [`Backend`](crate::backend::Backend) that can says so by `memos`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use lockkeeper_core::memos::{Memos, Swap};
/// use lockkeeper_core::{Key, Memory};
///
/// let (store, key, hour) = (Memory::default(), Key::new("nightly")?, Duration::from_secs(3600));
/// let Swap::Done(first) = store.swap(&key, None, b"begun", hour).await? else { panic!("there was none") };
/// assert!(matches!(store.swap(&key, None, b"mine", hour).await?, Swap::Conflict(Some(_))));
/// assert!(matches!(store.swap(&key, Some(first), b"done", hour).await?, Swap::Done(_)));
/// assert_eq!(store.read(&key).await?.expect("it is kept for an hour").value, b"done");
/// # Ok(())
/// # }
/// ```
pub trait Memos: fmt::Debug + Send + Sync + 'static {
    /// What is kept under this key, or `None`.
    fn read(&self, key: &Key) -> impl Future<Output = Result<Option<Memo>>> + Send;

    /// Keep `value` for `keep`, if the memo still is as `seen` says: of that version, or not there. Removes it if `keep` is
    /// zero.
    fn swap(
        &self,
        key: &Key,
        seen: Option<u64>,
        value: &[u8],
        keep: Duration,
    ) -> impl Future<Output = Result<Swap>> + Send;

    /// Resolve when reading again is worthwhile, because the memo may no longer be as `seen` says. May be early, late or
    /// never. By default it looks now and then, for stores that tell nobody of a change.
    fn changed(&self, key: &Key, seen: Option<u64>) -> impl Future<Output = ()> + Send {
        async move {
            let (clock, mut pause) = (Clock::boot(), LOOK_FIRST);
            while let Ok(there) = self.read(key).await {
                if there.map(|it| it.version) != seen {
                    return;
                }
                clock.sleep(pause).await;
                pause = (pause * 2).min(LOOK_AGAIN);
            }
        }
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// [`Memos`] without its type. Every store that has memos has it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::memos::DynMemos;
/// use lockkeeper_core::{Key, Memory};
///
/// let memos: Box<dyn DynMemos> = Box::new(Memory::default());
/// assert_eq!(memos.read(&Key::new("nightly")?).await?, None);
/// # Ok(())
/// # }
/// ```
pub trait DynMemos: fmt::Debug + Send + Sync + 'static {
    /// See [`Memos::read`].
    fn read<'a>(&'a self, key: &'a Key) -> Boxed<'a, Result<Option<Memo>>>;
    /// See [`Memos::swap`].
    fn swap<'a>(
        &'a self,
        key: &'a Key,
        seen: Option<u64>,
        value: &'a [u8],
        keep: Duration,
    ) -> Boxed<'a, Result<Swap>>;
    /// See [`Memos::changed`].
    fn changed<'a>(&'a self, key: &'a Key, seen: Option<u64>) -> Boxed<'a, ()>;
}

impl<M: Memos> DynMemos for M {
    fn read<'a>(&'a self, key: &'a Key) -> Boxed<'a, Result<Option<Memo>>> {
        Box::pin(Memos::read(self, key))
    }

    fn swap<'a>(
        &'a self,
        key: &'a Key,
        seen: Option<u64>,
        value: &'a [u8],
        keep: Duration,
    ) -> Boxed<'a, Result<Swap>> {
        Box::pin(Memos::swap(self, key, seen, value, keep))
    }

    fn changed<'a>(&'a self, key: &'a Key, seen: Option<u64>) -> Boxed<'a, ()> {
        Box::pin(Memos::changed(self, key, seen))
    }
}
