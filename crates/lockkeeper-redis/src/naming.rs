//! Names in the store. A lock's name is hashed, so that no name can alias, inject or choose its slot.
//!
//! `lk:{a7}:3f…`: prefix, tag, hash. Locks of one tag share a hash slot, so that a cluster can renew them
//! by one script and wake their waiters by one channel; 256 tags spread well over the nodes of a cluster.

use lockkeeper_core::Key;
use sha2::{Digest as _, Sha256};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The key of a lock, and its tag.
pub(crate) fn main_key(prefix: &str, key: &Key) -> (String, u8) {
    let hash = Sha256::digest(key.as_str());
    let tag = hash[0];
    let mut name = String::with_capacity(prefix.len() + 6 + 40);
    name.push_str(prefix);
    push_tag(&mut name, tag);
    name.push(':');
    // 160 bits: two names with the same hash will not be found.
    let mut digits = [0; 40];
    for (two, byte) in digits.chunks_exact_mut(2).zip(&hash[1..21]) {
        two.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
    name.push_str(str::from_utf8(&digits).unwrap_or_default());
    (name, tag)
}

/// The key of the mark: the largest counter ever given. One for all locks, or on a cluster for those of this tag.
pub(crate) fn mark_key(prefix: &str, tag: Option<u8>) -> String {
    let mut name = prefix.to_owned();
    if let Some(tag) = tag {
        push_tag(&mut name, tag);
    }
    name.push_str(":mark");
    name
}

/// The key of the memo of the same name, in the same slot as the lock.
pub(crate) fn memo_key(main: &str) -> String {
    format!("{main}:memo")
}

/// Where the last version of a memo is kept, beside the mark.
pub(crate) fn versions_key(mark: &str) -> String {
    format!("{mark}:memos")
}

/// What every lock of this prefix matches, and nothing else of ours.
pub(crate) fn pattern(prefix: &str) -> String {
    format!("{prefix}:{{??}}:{}", "?".repeat(40))
}

/// The tag of a lock's key.
pub(crate) fn tag_of(prefix: &str, main: &str) -> Option<u8> {
    let tag = main.strip_prefix(prefix)?.strip_prefix(":{")?.get(..2)?;
    u8::from_str_radix(tag, 16).ok()
}

/// The channel on which a process is woken.
pub(crate) fn channel(prefix: &str, tag: Option<u8>, process: &str) -> String {
    let mut name = format!("{prefix}:wake");
    if let Some(tag) = tag {
        push_tag(&mut name, tag);
    }
    name.push(':');
    name.push_str(process);
    name
}

/// The slot where a cluster keeps everything of this tag.
pub(crate) fn slot_of_tag(tag: u8) -> u16 {
    crc16(&[HEX[usize::from(tag >> 4)], HEX[usize::from(tag & 15)]]) % 16384
}

/// The checksum by which a cluster finds slots (CRC-16/XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 }
        })
    })
}

fn push_tag(name: &mut String, tag: u8) {
    name.push_str(":{");
    push_hex(name, tag);
    name.push('}');
}

fn push_hex(name: &mut String, byte: u8) {
    name.push(char::from(HEX[usize::from(byte >> 4)]));
    name.push(char::from(HEX[usize::from(byte & 15)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        let slots: std::collections::HashSet<_> = (0..=255).map(slot_of_tag).collect();
        assert_eq!(slots.len(), 256);
    }

    #[test]
    fn names_become_keys_of_one_form() {
        let (one, tag) = main_key("lk", &Key::new("orders/42").unwrap());
        assert_eq!(one.len(), "lk:{00}:".len() + 40);
        assert!(one.starts_with(&format!("lk:{{{tag:02x}}}:")), "{one}");
        assert_eq!(tag_of("lk", &one), Some(tag));
        assert_ne!(one, main_key("lk", &Key::new("orders/43").unwrap()).0);
        assert_eq!(channel("lk", Some(0xa7), "p"), "lk:wake:{a7}:p");
        assert_eq!(channel("lk", None, "p"), "lk:wake:p");
        assert_eq!(mark_key("lk", Some(0xa7)), "lk:{a7}:mark");
        assert_eq!(mark_key("lk", None), "lk:mark");
    }
}
