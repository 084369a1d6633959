//! Values as literals of SQL.

use crate::name::printable;

/// Bytes as a literal. Hexadecimal digits cannot end it, whatever the server's mode.
pub(super) fn bytes(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut literal = String::with_capacity(bytes.len() * 2 + 3);
    literal.push_str("x'");
    for byte in bytes {
        literal.push(char::from(DIGITS[usize::from(byte >> 4)]));
        literal.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    literal.push('\'');
    literal
}

/// Text as a literal.
pub(super) fn text(text: &str) -> String {
    format!("_utf8mb4 {}", bytes(text.as_bytes()))
}

/// Text, or nothing.
pub(super) fn optional(value: Option<&str>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |it| text(&printable(it)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_end_its_literal() {
        assert_eq!(text("a'; DROP"), "_utf8mb4 x'61273b2044524f50'");
        assert_eq!(bytes(&[]), "x''");
        assert_eq!(optional(None), "NULL");
    }
}
