//! A key: the name of what is locked, checked once so that every store may trust it.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use crate::error::Error;

/// The longest name, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 512;

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters.
///
/// Keys are compared byte by byte. `Order` and `order`, `a` and `a `, composed and decomposed
/// accents are different keys on every store. A clone is cheap: short names lie inside the key, long
/// ones are shared.
///
/// ```
/// # use lockkeeper_core::Key;
/// assert!(Key::new("orders/42").is_ok());
/// assert!(Key::new("").is_err());
/// assert!(Key::new("line\nbreak").is_err());
/// ```
#[derive(Clone)]
pub struct Key {
    /// Taken once, because every table in this process looks the key up by it.
    hash: u64,
    name: Name,
}

/// The text of a key. No `enum`, and nothing at an odd address: a key is moved several times on its way to the queue, and
/// a move in pieces costs more than the queue itself.
#[derive(Clone, PartialEq, Eq)]
struct Name {
    /// A name that does not fit below.
    long: Option<Arc<str>>,
    short: [u8; SHORT_MAX],
    /// How much of `short` is the name; zero for a long one.
    short_len: u8,
}

/// The longest name that needs no memory of its own.
const SHORT_MAX: usize = 31;

impl Name {
    fn new(name: &str) -> Self {
        let mut short = [0; SHORT_MAX];
        let (long, short_len) = match (short.get_mut(..name.len()), u8::try_from(name.len())) {
            (Some(into), Ok(len)) => {
                into.copy_from_slice(name.as_bytes());
                (None, len)
            }
            _ => (Some(name.into()), 0),
        };
        Name { long, short, short_len }
    }

    fn as_str(&self) -> &str {
        match &self.long {
            Some(long) => long,
            // It was copied from a `str`, so it is one.
            None => std::str::from_utf8(&self.short[..usize::from(self.short_len)]).unwrap_or_default(),
        }
    }
}

/// One seed per process, so that nobody outside can choose names that collide.
static HASHER: LazyLock<foldhash::quality::RandomState> =
    LazyLock::new(foldhash::quality::RandomState::default);

impl Key {
    /// Check a name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty, longer than [`KEY_BYTES_MAX`], or holds a control character.
    pub fn new(name: &str) -> Result<Self, Error> {
        check(name)?;
        Ok(Key { hash: HASHER.hash_one(name), name: Name::new(name) })
    }

    /// Check a name that came as bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] as for [`Key::new`], and if the bytes are not UTF-8.
    pub fn from_bytes(name: &[u8]) -> Result<Self, Error> {
        let name = std::str::from_utf8(name).map_err(|it| {
            Error::invalid(format!(
                "the lock name is not UTF-8: byte {} begins no character",
                it.valid_up_to()
            ))
        })?;
        Key::new(name)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        self.name.as_str()
    }

    /// A hash of the name, good for this process only.
    pub(crate) fn hash64(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.name == other.name
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

/// What [`Key::new`] demands of a name.
fn check(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::invalid("the lock name is empty; give it 1 to 512 bytes"));
    }
    if KEY_BYTES_MAX < name.len() {
        let (len, max) = (name.len(), KEY_BYTES_MAX);
        return Err(Error::invalid(format!("the lock name has {len} bytes; at most {max} are allowed")));
    }
    // Plain ASCII text needs no decoding; C1 controls (U+0080..9F) hide in two-byte sequences.
    if name.bytes().all(|it| (0x20..0x7f).contains(&it)) {
        return Ok(());
    }
    match name.char_indices().find(|(_, it)| it.is_control()) {
        None => Ok(()),
        Some((at, it)) => Err(Error::invalid(format!(
            "the lock name holds the control character U+{:04X} at byte {at}; remove it",
            u32::from(it)
        ))),
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_and_odd_names_are_keys() {
        let longest = "x".repeat(KEY_BYTES_MAX);
        let (inside, outside) = ("é".repeat(SHORT_MAX / 2), "é".repeat(SHORT_MAX / 2 + 1));
        let names =
            ["a", " ", "a/b", "..", "{x}", "*", "'; DROP TABLE locks;--", "é", "e\u{301}", "\u{202e}x", "🔒"];
        for name in names.into_iter().chain([longest.as_str(), &inside, &outside]) {
            assert_eq!(Key::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn what_is_no_key_is_refused_with_a_reason() {
        let too_long = "x".repeat(KEY_BYTES_MAX + 1);
        for name in ["", "a\0b", "a\nb", "\u{7f}", "\u{85}", "\x1b[31m", too_long.as_str()] {
            let error = Key::new(name).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{name:?}: {error}");
        }
        assert!(Key::from_bytes(b"a\xff").unwrap_err().to_string().contains("not UTF-8"));
    }

    #[test]
    fn names_that_differ_are_different_keys() {
        for (one, other) in [("Order", "order"), ("a", "a "), ("a", "aa"), ("é", "e\u{301}")] {
            assert_ne!(Key::new(one).unwrap(), Key::new(other).unwrap());
        }
    }
}
