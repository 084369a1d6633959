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
    for byte in &hash[1..21] {
        push_hex(&mut name, *byte);
    }
    (name, tag)
}

/// What every lock of this prefix matches, and nothing else of ours.
pub(crate) fn pattern(prefix: &str) -> String {
    format!("{prefix}:{{??}}:{}", "?".repeat(40))
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
    fn names_become_keys_of_one_form() {
        let (one, tag) = main_key("lk", &Key::new("orders/42").unwrap());
        assert_eq!(one.len(), "lk:{00}:".len() + 40);
        assert!(one.starts_with(&format!("lk:{{{tag:02x}}}:")), "{one}");
        assert_ne!(one, main_key("lk", &Key::new("orders/43").unwrap()).0);
        assert_eq!(channel("lk", Some(0xa7), "p"), "lk:wake:{a7}:p");
        assert_eq!(channel("lk", None, "p"), "lk:wake:p");
    }
}
