//! What `run` holds while its command runs: a lock, a share of one, or several at once.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use lockkeeper::{Guard, Key, Leadership, LostReason, MultiGuard, Result, SharedGuard};

use crate::text;

/// A guard of any kind.
pub(crate) enum Held {
    Alone(Guard),
    Shared(SharedGuard),
    Several(MultiGuard),
    Leads(Leadership),
}

/// Do the same with a guard of any kind.
macro_rules! each {
    ($held:expr, $guard:ident => $what:expr) => {
        match $held {
            Held::Alone($guard) => $what,
            Held::Shared($guard) => $what,
            Held::Several($guard) => $what,
            Held::Leads($guard) => $what,
        }
    };
}

impl Held {
    /// The fence of this lock, as the command sees it.
    pub(crate) fn fence(&self, key: &Key) -> String {
        match self {
            Held::Alone(it) => it.fence().to_string(),
            Held::Leads(it) => it.term().to_string(),
            Held::Shared(it) => it.fence().to_string(),
            Held::Several(it) => {
                let alone = it.fence(key.as_str()).map(|it| it.to_string());
                let shared = || it.shared_fence(key.as_str()).map(|it| it.to_string());
                alone.or_else(shared).unwrap_or_default()
            }
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        each!(self, it => it.is_valid())
    }

    pub(crate) fn remaining(&self) -> Duration {
        each!(self, it => it.remaining())
    }

    /// Resolves when it, or the first of several, is lost.
    pub(crate) fn lost(&self) -> Pin<Box<dyn Future<Output = LostReason>>> {
        match self {
            Held::Alone(it) => Box::pin(it.lost()),
            Held::Shared(it) => Box::pin(it.lost()),
            Held::Several(it) => Box::pin(it.lost()),
            Held::Leads(it) => match it.lost() {
                Ok(lost) => Box::pin(lost),
                // It was given back, which nobody does while the command runs.
                Err(_) => Box::pin(std::future::ready(LostReason::Released)),
            },
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Held::Alone(it) => it.release().await,
            Held::Shared(it) => it.release().await,
            Held::Several(it) => it.release().await,
            Held::Leads(it) => it.resign().await,
        }
    }
}

/// More names than this make a sentence unreadable.
const NAMES_MAX: usize = 3;

/// The names of what is locked, inside a sentence.
pub(crate) fn names<'a>(keys: impl ExactSizeIterator<Item = &'a Key>) -> String {
    let beyond = keys.len().saturating_sub(NAMES_MAX);
    let named: Vec<_> = keys.take(NAMES_MAX).map(|it| text::quoted(it.as_str())).collect();
    let more = if beyond == 0 { String::new() } else { format!(" and {beyond} more") };
    named.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_a_few() {
        let keys: Vec<_> = ["a", "b", "c", "d", "e"].iter().map(|it| Key::new(it).unwrap()).collect();
        assert_eq!(names(keys[..1].iter()), "`a`");
        assert_eq!(names(keys[..3].iter()), "`a`, `b`, `c`");
        assert_eq!(names(keys.iter()), "`a`, `b`, `c` and 2 more");
    }
}
