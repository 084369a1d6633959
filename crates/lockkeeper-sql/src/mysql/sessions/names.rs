//! What our locks are called at the server: digits of a hash, which no length, case or other database confuses.

use sha2::{Digest, Sha256};

use crate::name::NameHash;

/// What stands for this database in the names of its locks.
pub(super) type StoreId = [u8; 16];

/// The digits of a hash that fit, with the two letters in front, into the 64 characters that the server takes.
const DIGITS: usize = 62;

/// The name of a lock. 248 bits of a SHA-256, in small letters: the server does not tell large ones from them.
pub(super) fn lock_name(store: &StoreId, lock: &NameHash) -> String {
    let digest = Sha256::new().chain_update(store).chain_update(lock).finalize();
    let mut name = format!("lk{}", digits(&digest));
    name.truncate(2 + DIGITS);
    name
}

/// The same, as the server finds it by the column `lock` of a row.
pub(super) fn lock_name_sql(store: &StoreId, column: &str) -> String {
    format!("CONCAT('lk', LEFT(SHA2(CONCAT(x'{}', {column}), 256), {DIGITS}))", digits(store))
}

/// The lock that a session has as long as it lives, by its member's id.
pub(super) fn member_name(id: &[u8; 16]) -> String {
    format!("lkm{}", digits(id))
}

/// The same by the column `id` of a row.
pub(super) fn member_name_sql(column: &str) -> String {
    format!("CONCAT('lkm', LOWER(HEX({column})))")
}

/// The lock of whoever begins anew on a server that has started.
pub(super) fn beginning_name(store: &StoreId) -> String {
    format!("lkb{}", digits(store))
}

pub(super) fn digits(bytes: &[u8]) -> String {
    let literal = super::super::text::bytes(bytes);
    literal.trim_start_matches("x'").trim_end_matches('\'').to_owned()
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::Key;

    use super::*;
    use crate::name::hash;

    #[test]
    fn names_fit_and_differ_by_key_and_database() {
        let long = "x".repeat(300);
        let keys = ["Order", "order", "order ", long.as_str()];
        let mut names: Vec<String> = Vec::new();
        for store in [[1; 16], [2; 16]] {
            names.extend(keys.iter().map(|it| lock_name(&store, &hash(&Key::new(it).unwrap()))));
            names.push(beginning_name(&store));
            names.push(member_name(&store));
        }
        assert!(names.iter().all(|it| it.len() <= 64 && *it == it.to_lowercase()), "{names:?}");
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
