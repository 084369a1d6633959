//! Text from strangers made fit to print: what moves a terminal's cursor or hides is written out, secrets are not.

use std::fmt::Write as _;

/// Characters that draw nothing or change how their neighbours are drawn, beside control characters.
const HIDDEN: &[(u32, u32)] = &[
    (0x00ad, 0x00ad),
    (0x0600, 0x0605),
    (0x061c, 0x061c),
    (0x06dd, 0x06dd),
    (0x070f, 0x070f),
    (0x0890, 0x0891),
    (0x08e2, 0x08e2),
    (0x115f, 0x1160),
    (0x180e, 0x180e),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x206f),
    (0x3164, 0x3164),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff9, 0xfffb),
    (0x1_10bd, 0x1_10bd),
    (0x1_10cd, 0x1_10cd),
    (0x1_3430, 0x1_343f),
    (0x1_bca0, 0x1_bca3),
    (0x1_d173, 0x1_d17a),
    (0xe_0000, 0xe_0fff),
];

/// Whether a character must not reach a terminal as it is.
fn is_hostile(it: char) -> bool {
    let code = u32::from(it);
    it.is_control()
        || (it.is_whitespace() && it != ' ')
        || HIDDEN.iter().any(|(from, to)| (*from..=*to).contains(&code))
}

/// The text on one line, with everything hostile written as `\u{1b}` and a backslash as `\\`, so that two
/// texts that differ never look the same.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '\\' => out.push_str("\\\\"),
            it if is_hostile(it) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(it));
            }
            it => out.push(it),
        }
    }
    out
}

/// [`plain`] for a cell of a table: blanks at the ends are made visible by quotes.
pub(crate) fn cell(text: &str) -> String {
    let shown = plain(text);
    if text.is_empty() || text.starts_with(' ') || text.ends_with(' ') || text.starts_with('"') {
        return format!("\"{shown}\"");
    }
    shown
}

/// A name inside a sentence.
pub(crate) fn quoted(name: &str) -> String {
    format!("`{}`", plain(name))
}

/// A message of our own or of a library: as [`plain`], but line breaks stay and backslashes are not doubled.
pub(crate) fn message(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for it in text.chars() {
        if it != '\n' && is_hostile(it) {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(it));
        } else {
            out.push(it);
        }
    }
    out
}

/// JSON whose strings cannot move a terminal either. Hostile characters occur inside strings only, where
/// `\uXXXX` means the same.
pub(crate) fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for it in text.chars() {
        if it == '\n' || !is_hostile(it) {
            out.push(it);
            continue;
        }
        for unit in it.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

const MASK: &str = "***";

/// The text without passwords: what stands between `://` and `@` in a URL, and the values of options whose
/// names speak of secrets.
pub(crate) fn without_secrets(text: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(|word| without_secret_values(&without_userinfo(word)))
        .collect()
}

/// A whole URL without its password, which may hold blanks that nobody escaped.
pub(crate) fn url_without_secrets(url: &str) -> String {
    without_secret_values(&without_userinfo(url))
}

/// Everything up to the last `@`, because a password may hold an `@` or a `/` that nobody escaped.
fn without_userinfo(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else {
        return word.to_owned();
    };
    // Three slashes: a path on this machine, without a host and without a user.
    match rest.rsplit_once('@') {
        Some((login, host)) if !rest.starts_with('/') && !PLACEHOLDERS.contains(&login) => {
            format!("{scheme}://{MASK}@{host}")
        }
        _ => word.to_owned(),
    }
}

/// What stands for a login where a message teaches how to write a URL. It is nobody's secret.
const PLACEHOLDERS: [&str; 3] = ["[user:password", "user:password", "[user[:password]"];

fn without_secret_values(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    for (index, part) in word.split_inclusive(['?', '&', ';']).enumerate() {
        let secret = part.split_once('=').filter(|(key, _)| index > 0 && speaks_of_secrets(key));
        match secret {
            None => out.push_str(part),
            Some((key, value)) => {
                let end = value.trim_start_matches(|it| {
                    !matches!(it, '&' | ';' | '`' | '"' | '\'') && !char::is_whitespace(it)
                });
                let _ = write!(out, "{key}={MASK}{end}");
            }
        }
    }
    out
}

fn speaks_of_secrets(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["pass", "pwd", "secret", "token", "auth", "cred", "key"].iter().any(|it| key.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_a_cursor_or_hides_gets_through() {
        for hostile in [
            "\x1b[2J",
            "\x1b]0;title\x07",
            "a\rb",
            "a\nb",
            "a\tb",
            "\u{9b}31m",
            "\u{85}",
            "\u{7f}",
            "\u{202e}gpj",
            "a\u{200b}b",
            "\u{2066}x\u{2069}",
            "\u{feff}",
            "\u{ad}",
            "\u{2028}",
            "\u{a0}",
            "\u{e0041}",
            "\u{3164}",
        ] {
            for shown in [plain(hostile), cell(hostile), quoted(hostile), json(hostile)] {
                let left = shown.chars().find(|it| *it != '\n' && is_hostile(*it));
                assert_eq!(left, None, "{hostile:?} became {shown:?}");
            }
        }
        assert_eq!(plain("\x1b[31mred"), "\\u{1b}[31mred");
    }

    #[test]
    fn ordinary_text_of_every_script_stays_as_it_is() {
        for text in ["orders/42", "Zürich", "заказ", "注文", "طلب", "🔒", "a b", "'; DROP TABLE x;--"]
        {
            assert_eq!(plain(text), text);
            assert_eq!(cell(text), text);
        }
    }

    #[test]
    fn texts_that_differ_look_different() {
        let texts = ["a", "a ", " a", "\u{202e}", "\\u{202e}", "\\\\u{202e}", "", "\"a\"", "\"\""];
        for (at, one) in texts.iter().enumerate() {
            for other in &texts[at + 1..] {
                assert_ne!(cell(one), cell(other));
            }
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let text = "\u{1b}[31m\u{9b}\u{202e}\u{e0041}\"\\é🔒";
        let written = json(&serde_json::to_string(text).unwrap());
        assert!(written.is_ascii() || !written.chars().any(is_hostile));
        assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text);
    }

    #[test]
    fn passwords_are_not_repeated() {
        for (text, shown) in [
            ("redis://user:hunter2@host/0", "redis://***@host/0"),
            ("redis://:hunter2@host", "redis://***@host"),
            ("redis://u:hun@ter2/x@host", "redis://***@host"),
            ("redlock:redis://u:hunter2@a,redis://u:hunter2@b", "redlock:redis://***@b"),
            ("postgres://host/db?password=hunter2&sslmode=on", "postgres://host/db?password=***&sslmode=on"),
            ("mysql://h/d?a=1;Passwd=hunter2", "mysql://h/d?a=1;Passwd=***"),
            ("no URL `redis://u:hunter2@h?token=hunter2`.", "no URL `redis://***@h?token=***`."),
            ("sqlite:///home/a@b/locks.db", "sqlite:///home/a@b/locks.db"),
            ("sqlite:/x?durability=full", "sqlite:/x?durability=full"),
            ("mail a@b, 3 = 3", "mail a@b, 3 = 3"),
            (
                "write etcd://[user:password@]host[:port],host…",
                "write etcd://[user:password@]host[:port],host…",
            ),
            ("write `mysql://user:password@host:port/db`", "write `mysql://user:password@host:port/db`"),
            ("redis://[user:hunter2@]host", "redis://***@]host"),
        ] {
            assert_eq!(without_secrets(text), shown);
            assert!(!without_secrets(text).contains("hunter2"));
        }
    }
}
