//! A claim as text, for stores that keep a name and a value: what people see, and what others reckon with.

use std::fmt::Write as _;

use crate::key::Key;
use crate::spi::claim::{Claim, Label, Load};

/// What a store keeps beside the name of a claim.
///
/// ```
/// # use lockkeeper_core::{Claim, ClaimId, Error, Key, Label};
/// # fn claim() -> Result<Claim, Error> {
/// #     Claim::new(Key::new("orders/42")?, std::time::Duration::from_secs(10))
/// # }
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::record::Record;
///
/// let text = Record::text_of(&claim()?);
/// assert!(text.contains("key=orders/42\n"));
/// let record = Record::read(text.as_bytes()).expect("it was just written");
/// assert_eq!(record.key.as_str(), "orders/42");
/// assert_eq!(Record::read(b"somebody else's"), None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// What is locked.
    pub key: Key,
    /// What the claim takes of the room.
    pub load: Load,
    /// Who stands behind it.
    pub label: Label,
}

impl Record {
    /// The text of a claim: one `name=value` per line, so that people can read it in the store's own tools.
    pub fn text_of(claim: &Claim) -> String {
        let Claim { key, load: Load { weight, capacity }, label, .. } = claim;
        let mut text = format!("lockkeeper=1\nkey={key}\nweight={weight}\ncapacity={capacity}\n");
        let _ = writeln!(text, "host={}\npid={}", escaped(&label.host), label.pid);
        for (name, value) in [("owner", &label.owner), ("note", &label.note)] {
            if let Some(value) = value {
                let _ = writeln!(text, "{name}={}", escaped(value));
            }
        }
        text
    }

    /// Read what [`Record::text_of`] wrote. `None` for anything else; lines of a later version are passed over.
    pub fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let field = |name: &str| text.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
        field("lockkeeper")?;
        let number = |name: &str| field(name)?.parse().ok();
        let load = Load::new(number("weight")?, number("capacity")?);
        let (host, pid) = (field("host").map(unescaped)?, number("pid")?);
        let label = Label::new(host, pid, field("owner").map(unescaped), field("note").map(unescaped));
        Some(Record { key: Key::new(field("key")?).ok()?, load, label })
    }
}

/// One line of text for any text. A label is free text and may hold line breaks.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            it => out.push(it),
        }
    }
    out
}

fn unescaped(text: &str) -> String {
    let (mut out, mut chars) = (String::with_capacity(text.len()), text.chars());
    while let Some(it) = chars.next() {
        match it {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some(it) => out.push(it),
                None => {}
            },
            it => out.push(it),
        }
    }
    out
}

/// Bytes that need no escape in [`segment_of`].
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_~:@+,=".contains(&byte)
}

/// A key's name as one segment of a path: no slash, no dot, nothing but plain ASCII, and never the same for
/// two names. Everything else is `%` and two digits. The segment of a prefix is a prefix of the segment.
///
/// ```
/// use lockkeeper_core::record::{key_of, segment_of};
///
/// let segment = segment_of("orders/42");
/// assert_eq!(segment, "orders%2F42");
/// assert_eq!(key_of(&segment).expect("it was just written").as_str(), "orders/42");
/// assert!(key_of("orders/42").is_none());
/// ```
pub fn segment_of(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The key of a segment; `None` if [`segment_of`] makes no such segment.
pub fn key_of(segment: &str) -> Option<Key> {
    let (mut name, mut bytes) = (Vec::with_capacity(segment.len()), segment.bytes());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            name.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        name.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    Key::from_bytes(&name).ok().filter(|it| segment_of(it.as_str()) == segment)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::spi::claim::ClaimId;

    #[test]
    fn a_record_survives_the_trip_through_text() {
        let label = Label::new("h\\n\nx", 7, Some("a\r\nkey=b".into()), None);
        let claim =
            Claim::known_as(ClaimId::from_bytes([1; 16]), Key::new("a=b/é").unwrap(), Duration::from_secs(1))
                .load(Load::new(2, u32::MAX))
                .labelled(Arc::new(label.clone()));
        let record = Record::read(Record::text_of(&claim).as_bytes()).unwrap();
        let load = Load::new(2, u32::MAX);
        assert_eq!(record, Record { key: claim.key.clone(), load, label });
        let later = Record::text_of(&claim) + "colour=blue\n";
        assert_eq!(Record::read(later.as_bytes()).unwrap(), record);
    }

    #[test]
    fn what_is_no_record_is_not_read() {
        for text in ["", "lockkeeper=1", "key=a\nweight=1\ncapacity=1\nhost=h\npid=1", "weight=-1", "\u{0}"] {
            assert_eq!(Record::read(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Record::read(b"\xff"), None);
    }

    #[test]
    fn segments_are_plain_and_never_alias() {
        for name in ["a", ".", "..", "/", "a/b", "%2F", "a b", "é", "e\u{301}", "🔒", "x%"] {
            let segment = segment_of(name);
            assert!(segment.bytes().all(|it| is_plain(it) || it == b'%'), "{segment}");
            assert_eq!(key_of(&segment).unwrap().as_str(), name);
        }
        for foreign in ["", "%", "%4", "%zz", "%41", "%2f", "a/b", "."] {
            assert_eq!(key_of(foreign), None, "{foreign:?}");
        }
    }
}
