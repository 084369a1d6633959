//! A key: the name of what is locked, checked once so that every store may trust it.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::str::FromStr;
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
    short: Short,
}

/// A short name, zeros, and in the last byte how long it is. Aligned, so that it is moved in whole words wherever it lies.
#[derive(Clone, PartialEq, Eq)]
#[repr(align(8))]
struct Short([[u8; 8]; 4]);

/// The longest name that needs no memory of its own.
const SHORT_MAX: usize = 31;

impl Name {
    /// A name that is not too long for it; `None` otherwise.
    #[inline]
    fn short(name: &str) -> Option<Words> {
        let bytes = name.as_bytes();
        let words = || Words([word(bytes, 0), word(bytes, 8), word(bytes, 16), word(bytes, 24)]);
        (bytes.len() <= SHORT_MAX).then(words)
    }

    #[inline]
    fn of_words(Words([first, second, third, last]): Words, len: usize) -> Self {
        let last = last | (len as u64) << 56;
        Name { long: None, short: Short([first, second, third, last].map(u64::to_le_bytes)) }
    }

    fn as_str(&self) -> &str {
        if let Some(long) = &self.long {
            return long;
        }
        let bytes = self.short.0.as_flattened();
        // It was copied from a `str`, so it is one.
        std::str::from_utf8(&bytes[..usize::from(bytes[SHORT_MAX])]).unwrap_or_default()
    }
}

/// Eight bytes from `at` on, with zeros behind the end. Read in whole words, each of which overlaps another at the end:
/// bytes copied one by one could not be moved on before all of them had arrived in memory.
#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let there = bytes.len().saturating_sub(at);
    if let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        return u64::from_le_bytes(*word);
    }
    match (there, bytes.last_chunk::<8>(), bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (0, ..) => 0,
        (_, Some(last), ..) => u64::from_le_bytes(*last) >> (64 - there * 8),
        (_, None, Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (there * 8 - 32)
        }
        _ => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// The bytes of a short name, with zeros behind its end.
struct Words([u64; 4]);

impl Words {
    /// Whether all `len` bytes are printable ASCII, judged eight at a time: one by one they cost a tenth of an in-process
    /// lock.
    #[inline]
    fn are_plain(&self, len: usize) -> bool {
        const EACH: u64 = u64::from_ne_bytes([1; 8]);
        /// What is or-ed to the zeros behind the end, wherever that is.
        const SPACES: [u8; 64] = {
            let mut spaces = [b' '; 64];
            let mut at = 0;
            while at < 32 {
                spaces[at] = 0;
                at += 1;
            }
            spaces
        };
        let behind = &SPACES[32 - len.min(32)..];
        let odd = self.0.iter().enumerate().fold(0, |odd, (at, word)| {
            let word = word | self::word(behind, at * 8);
            // The top bit of a byte is set if it is above ASCII, or below the space (it borrows), or DEL (it carries).
            odd | word | word.wrapping_sub(EACH * 0x20) | word.wrapping_add(EACH)
        });
        odd & (EACH * 0x80) == 0
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
        let hash = || HASHER.hash_one(name);
        let Some(words) = Name::short(name) else {
            check(name)?;
            let name = Name { long: Some(name.into()), short: Short([[0; 8]; 4]) };
            return Ok(Key { hash: hash(), name });
        };
        if name.is_empty() || !words.are_plain(name.len()) {
            check(name)?;
        }
        Ok(Key { hash: hash(), name: Name::of_words(words, name.len()) })
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

impl FromStr for Key {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Key::new(name)
    }
}

impl TryFrom<&str> for Key {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self, Error> {
        Key::new(name)
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        Key::new(&name)
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
    fn a_name_of_every_length_is_kept_byte_by_byte() {
        let text = "abcdefghijklmnopqrstuvwxyz0123456789";
        for len in 1..=text.len() {
            assert_eq!(Key::new(&text[..len]).unwrap().as_str(), &text[..len]);
            let (short, zero) = (text[..len - 1].to_owned() + "\u{a0}", text[..len].to_owned() + "0");
            assert_ne!(Key::new(&short).unwrap(), Key::new(&zero).unwrap());
            assert_eq!(Key::new(&short).unwrap().as_str(), short);
        }
    }

    #[test]
    fn every_character_at_every_place_is_judged_as_one_by_one() {
        for (len, beside) in (1..=SHORT_MAX + 2).flat_map(|len| [(len, ' '), (len, '~')]) {
            for (at, odd) in (0..len).flat_map(|at| ('\0'..='\u{a1}').map(move |it| (at, it))) {
                let name: String = (0..len).map(|it| if it == at { odd } else { beside }).collect();
                assert_eq!(Key::new(&name).is_err(), odd.is_control(), "{odd:?} at {at} of {len}");
                let plain = Name::short(&name).is_some_and(|it| it.are_plain(name.len()));
                let by_bytes = name.len() <= SHORT_MAX && (' '..='~').contains(&odd);
                assert_eq!(plain, by_bytes, "{odd:?} at {at} of {len}");
            }
        }
    }

    #[test]
    fn what_is_no_key_is_refused_with_a_reason() {
        let too_long = "x".repeat(KEY_BYTES_MAX + 1);
        for name in ["", "a\0b", "a\nb", "\u{7f}", "\u{85}", "\x1b[31m", too_long.as_str()] {
            let error = Key::new(name).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{name:?}: {error}");
        }
        assert!(
            "".parse::<Key>().is_err() && Key::try_from("a\nb").is_err() && Key::try_from(too_long).is_err()
        );
        assert_eq!("a".parse::<Key>().unwrap(), Key::try_from("a").unwrap());
        assert!(Key::from_bytes(b"a\xff").unwrap_err().to_string().contains("not UTF-8"));
    }

    #[test]
    fn names_that_differ_are_different_keys() {
        for (one, other) in [("Order", "order"), ("a", "a "), ("a", "aa"), ("é", "e\u{301}")] {
            assert_ne!(Key::new(one).unwrap(), Key::new(other).unwrap());
        }
    }
}
