//! Every text of an error that a user can meet, gathered from the sources into a page, so that people find it by searching.
//!
//! A text is what stands in quotes where an error is made, and every other sentence in quotes that is not plainly something
//! else: a text in a constant, or one that a helper makes, reaches the page without a word about it here. `cargo xtask errors`
//! writes the page, tidy checks that it is as the sources are, and that every text that the page of troubleshooting explains is
//! still there.

mod literals;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use literals::{Literal, literals};

use crate::{shell, tidy};

pub(crate) const PAGE: &str = "docs/guides/error-texts.md";
const EXPLAINED: &str = "docs/guides/troubleshooting.md";

/// All that it says is said while a program is compiled.
const MACROS: &str = "lockkeeper-macros";

/// The crates whose errors users meet, and what each is to them.
const CRATES: &[(&str, &str)] = &[
    ("lockkeeper", "The library: URLs, configuration, the process-wide locker"),
    ("lockkeeper-core", "Requests and guards"),
    ("lockkeeper-cache", "Cache rebuild"),
    (MACROS, "`#[locked]`"),
    ("lockkeeper-cli", "The command"),
    ("lockkeeper-demo", "The flash sale"),
    ("lockkeeper-serve", "Locks over HTTP"),
    ("lockkeeper-torture", "The torture"),
    ("lockkeeper-twophase", "Two-phase commit"),
    ("lockkeeper-sqlite", "SQLite"),
    ("lockkeeper-redis", "Redis"),
    ("lockkeeper-redlock", "Redlock"),
    ("lockkeeper-sql", "PostgreSQL, MySQL and MariaDB"),
    ("lockkeeper-etcd", "etcd"),
    ("lockkeeper-zookeeper", "ZooKeeper"),
];

/// Where errors are made, and of which kind each is.
const MAKERS: &[(&str, &str)] = &[
    ("#[error(", "error"),
    ("Error::invalid(", "invalid"),
    (".wrong(", "invalid"),
    ("Error::unsupported(", "unsupported"),
    ("Error::unavailable(", "unavailable"),
    ("Fault::transient(", "transient"),
    ("Fault::permanent(", "permanent"),
    ("Trouble::permanent(", "permanent"),
    ("Trouble::Refused(", "permanent"),
    ("Trouble::Said(", "participant"),
    ("Refusal::new(", "http"),
    ("Refusal::invalid(", "http"),
    ("Refusal::busy(", "http"),
    ("Failure::new(", "command"),
    ("Failure::unreachable(", "command"),
    ("Failure::system(", "command"),
];

/// What is said by these is no error: proofs, logs, what the command prints when all is well, findings of the doctor, words that
/// are looked for.
const SAID_BY: &[&str] = &[
    "assert!",
    "assert_eq!",
    "assert_ne!",
    "debug_assert!",
    "debug_assert_eq!",
    "unreachable!",
    "panic!",
    "expect",
    "debug!",
    "info!",
    "warn!",
    "trace!",
    "say",
    "say_raw",
    "data",
    "tell",
    "draw",
    "println!",
    "select!",
    "query_drop",
    "script",
    "Finding::fine",
    "Finding::warning",
    "Finding::danger",
    "Finding::new",
    "Meter::new",
    "MemoOf::new",
    "Response",
    "contains",
    "starts_with",
    "ends_with",
    "strip_prefix",
    "find",
    "replace",
    "lines.push",
    "push_str",
    "Form::new",
];
/// Files whose sentences are read by those who asked for them: help, reports, pages, tests.
const ASKED_FOR: &[&str] = &[
    "/help.rs",
    "/doctor.rs",
    "/finding.rs",
    "/tests.rs",
    "/console/",
    "/plot.rs",
    "/explain.rs",
    "/report.rs",
    "/show.rs",
    "/live.rs",
    "/leader.rs",
    "/verdict.rs",
    "/user.rs",
    "/args.rs",
    "/staff.rs",
    "/check.rs",
];
/// How statements begin.
const SQL: &[&str] = &[
    "ALTER",
    "BEGIN",
    "CALL",
    "COMMIT",
    "CONVERT",
    "CREATE",
    "DELETE",
    "DO",
    "DROP",
    "GRANT",
    "INSERT",
    "KILL",
    "LEFT",
    "LISTEN",
    "LOCK",
    "PRAGMA",
    "PREPARE",
    "REPLACE",
    "REVOKE",
    "ROLLBACK",
    "SAVEPOINT",
    "SELECT",
    "SET",
    "SHOW",
    "START",
    "UNHEX",
    "UPDATE",
    "WHERE",
    "WITH",
    "XA",
];
/// Of what does not begin like a sentence of ours: SQL, scripts, headers.
const FOREIGN: &[&str] = &[
    " AND ",
    " IS NULL",
    " COLLATE ",
    "CONCAT",
    "redis.call",
    "=…; ",
    "…=…",
    "num_nulls",
    "lockkeeper_",
    "-src '",
    "charset=",
    "event: ",
    ", note, ",
    "c.counter",
    "NOT NULL",
    "term=",
    "convert_from(",
    "funcstack",
    "seq, id, ",
    "buyers, …",
    "of the system",
];

const HEAD: &str = "\
# Error texts

Written by `cargo xtask errors` from the sources: every text that is made into an error, with `…` for what is filled in. Search it for the words that
you were told; [troubleshooting](troubleshooting.md) explains those that need more than their own words. What a server or the system says after a colon is theirs,
and not listed; nor are texts of one or two words.

| kind | as a value | what to do |
|---|---|---|
| error | a variant of `Error` or of another error type | see [the library](library.md#errors-and-what-to-do-with-each) |
| invalid | `Error::Invalid`; code 64 of the command | change the call, the URL or the file. Nothing was done |
| unsupported | `Error::Unsupported`; code 64 | another store, or another build |
| unavailable | `Error::Unavailable`; code 69 | look at what is named; it may pass |
| transient | a fault that may pass; `Error::Unavailable` with `transient: true` if it lasts longer than `outage_max` | nothing, unless it stays: then look at the store and the network |
| permanent | a fault that stays until somebody changes something; `transient: false` | what the text says |
| participant | a database of a two-phase commit; inside another error | what the text says |
| http | the `message` of an answer of `lockkeeper serve` | the status and `error` beside it say what kind it is: see [locks over HTTP](serve.md) |
| compiler | said where `#[locked]` stands, when the program is compiled | what the text says; see [locked functions](locked-functions.md) |
| command | printed by `lockkeeper`, after `lockkeeper: error:` | what the `hint:` says |
| part | a part of another: what follows its colon, or its `hint:` | what the whole text says |
";

/// One text, and its kind.
type Text = (String, &'static str);

/// Write the page.
pub(crate) fn write() -> Result<(), String> {
    fs::write(shell::root().join(PAGE), page(&shell::root())?).map_err(|it| format!("{PAGE}: {it}"))
}

/// The page is as the sources are, and what is explained exists.
pub(crate) fn check(root: &Path, complaints: &mut Vec<String>) {
    match page(root) {
        Ok(page) if fs::read_to_string(root.join(PAGE)).is_ok_and(|it| it == page) => {}
        Ok(_) => {
            complaints.push(format!("{PAGE}: errors have other texts now; `cargo xtask errors` writes it"));
        }
        Err(error) => complaints.push(error),
    }
    let explained = fs::read_to_string(root.join(EXPLAINED)).unwrap_or_default();
    let known: Vec<String> =
        CRATES.iter().flat_map(|it| texts_of(root, it.0).unwrap_or_default()).map(|it| it.0).collect();
    for text in quoted(&explained).filter(|it| !known.iter().any(|known| known.contains(*it))) {
        complaints.push(format!("{EXPLAINED}: no error says \"{text}\" any more"));
    }
}

fn page(root: &Path) -> Result<String, String> {
    let mut page = HEAD.to_owned();
    for (name, title) in CRATES {
        let texts = texts_of(root, name)?;
        if !texts.is_empty() {
            let _ = write!(page, "\n## {title}\n\n| text | kind |\n|---|---|\n");
        }
        for (text, kind) in texts {
            let _ = writeln!(page, "| {} | {kind} |", text.replace('|', "\\|"));
        }
    }
    Ok(page)
}

/// What the page of troubleshooting explains: the first cell of its rows, where it is in quotes.
fn quoted(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|it| it.strip_prefix("| \"")?.split_once('"').map(|it| it.0))
}

fn texts_of(root: &Path, name: &str) -> Result<BTreeSet<Text>, String> {
    let (mut all, mut parts) = (BTreeSet::new(), BTreeSet::new());
    for file in tidy::files(&root.join("crates").join(name).join("src"), "rs") {
        let code = fs::read_to_string(&file).map_err(|it| format!("{}: {it}", file.display()))?;
        all.extend(texts_in(&code));
        let name = file.display().to_string();
        if !code.contains("@generated") {
            parts.extend(parts_in(&code, ASKED_FOR.iter().any(|it| name.contains(it))));
        }
    }
    parts.retain(|it| !all.iter().any(|text| text.0 == *it));
    let kind = if name == MACROS { "compiler" } else { "part" };
    all.extend(parts.into_iter().map(|it| (it, kind)));
    Ok(all)
}

/// Every sentence of a file that may be a part of an error: all but what is plainly something else. Where sentences are asked
/// for, those alone that stand in an `Err(…)`.
fn parts_in(code: &str, asked_for: bool) -> Vec<String> {
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    literals(code)
        .into_iter()
        .filter(|it| !asked_for || it.within.iter().any(|it| it == "Err"))
        .filter(may_be_met)
        .map(|it| it.text.replace('\u{b6}', "").trim().to_owned())
        .collect()
}

fn may_be_met(it: &Literal) -> bool {
    let said = |callee: &String| {
        let last = callee.rsplit('.').next().unwrap_or_default();
        SAID_BY.iter().any(|it| last == *it || callee.ends_with(&format!("::{it}")))
    };
    let is_attribute = it.within.iter().any(|it| it == "#" || it == "#!");
    let text = it.text.trim_end_matches('\u{b6}');
    is_sentence(text)
        && !it.in_list
        && !is_attribute
        && !it.within.iter().any(said)
        && !text.contains(['\u{b6}', '<'])
        && !is_doing(text)
        && begins_like_ours(text)
        && !FOREIGN.iter().any(|it| text.contains(it))
}

/// `renewing the lock`: what was done when it failed, which another text names.
fn is_doing(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    first.ends_with("ing") && first.len() > "thing".len() && !text.contains([';', ':'])
}

/// Not SQL, `'a', 'b'`, `-c`, `.. x`: sentences begin with a word, a name in back-ticks, or what is filled in.
fn begins_like_ours(text: &str) -> bool {
    let first = text.split(|it: char| !it.is_ascii_uppercase()).next().unwrap_or_default();
    text.starts_with(|it: char| it.is_alphanumeric() || "`…;\"".contains(it)) && !SQL.contains(&first)
}

/// The texts that one file makes errors of, its tests left out.
fn texts_in(code: &str) -> Vec<Text> {
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String = code
        .lines()
        .filter(|it| !it.trim_start().starts_with("//"))
        .fold(String::new(), |all, it| all + it + "\n");
    let mut found = Vec::new();
    for (maker, kind) in MAKERS {
        for (at, _) in code.match_indices(maker) {
            let args = balanced(&code[at + maker.len()..]);
            let texts = texts(args);
            // A name in place of a text: what it was given stands above, in the same function.
            let texts = if texts.is_empty() { named_above(&code[..at], args) } else { texts };
            found.extend(texts.into_iter().filter(|it| is_sentence(it)).map(|it| (it, *kind)));
        }
    }
    found
}

/// As far as the bracket that is open closes.
fn balanced(text: &str) -> &str {
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

/// All that stands in quotes, as it is shown.
fn texts(code: &str) -> Vec<String> {
    literals(code).into_iter().map(|it| it.text.replace('\u{b6}', " ")).collect()
}

/// The texts that `let NAME = …;` gave to the names in these arguments, where that stands above.
fn named_above(above: &str, args: &str) -> Vec<String> {
    let names = args.split(|it: char| !(it.is_alphanumeric() || it == '_')).filter(|it| !it.is_empty());
    let start = above.rfind("\nfn ").max(above.rfind(" fn ")).unwrap_or(0);
    names
        .filter_map(|name| {
            let at = above[start..].rfind(&format!("let {name} = "))?;
            let value = &above[start + at..];
            texts(value.split_once(";\n").map_or(value, |it| it.0)).into_iter().next()
        })
        .collect()
}

/// Names of stores and words such as `connecting` are no sentences.
fn is_sentence(text: &str) -> bool {
    3 <= text.split_whitespace().filter(|it| it.chars().any(char::is_alphabetic)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_where_errors_are_made() {
        let code = r#"
            // Error::invalid("only a comment here")
            fn a() { Error::invalid(format!("the name has {len} bytes; at most \
                {max} (or so) are {{allowed}}")); }
            fn b() { let text = format!("no place for {x} here"); Err(Failure::new(64, text)) }
            #[error("the lock with fence {fence} was lost: {reason}")]
            fn c() { Fault::transient(NAME, "connecting", "the server said \"no\" again") }
            #[cfg(test)]
            fn d() { Error::invalid("what only tests say") }
        "#;
        let texts: Vec<String> = texts_in(code).into_iter().map(|it| it.0).collect();
        let expected = [
            "the lock with fence … was lost: …",
            "the name has … bytes; at most … (or so) are {allowed}",
            "the server said \"no\" again",
            "no place for … here",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn a_text_that_is_made_elsewhere_is_found_too() {
        let code = r#"
            const FULL: &str = "the disk is full; free some space";
            #[must_use = "a request does nothing unless awaited"]
            fn a(code: u32) -> Option<&'static str> {
                debug_assert!(code > 0, "a code is never zero here");
                warn!("a late write was refused");
                client.query("SELECT a FROM b WHERE c");
                if text.contains("no space left on it") || ["file is too large"].contains(&text) { return Some(FULL) }
                let step = "renewing the lock of it";
                match code { 1 => "this server is a replica: name the primary", _ => helper("", format!("no {code} is known")) }
            }
            #[cfg(test)]
            const X: &str = "what only tests say";
        "#;
        let expected = [
            "the disk is full; free some space",
            "this server is a replica: name the primary",
            "no … is known",
        ];
        assert_eq!(parts_in(code, false), expected);
    }

    #[test]
    fn of_what_is_asked_for_errors_alone_are_listed() {
        let code =
            r#"fn a() { tips("let another lead now"); return Err("nobody was given a lock".into()); }"#;
        assert_eq!(parts_in(code, true), ["nobody was given a lock"]);
    }

    #[test]
    fn what_the_compiler_says_is_listed() {
        let root = shell::root();
        let said = texts_of(&root, MACROS).unwrap();
        assert!(said.contains(&("a `const fn` cannot take a lock".to_owned(), "compiler")), "{said:?}");
    }

    #[test]
    fn what_is_explained_stands_in_quotes_at_the_beginning_of_a_row() {
        let page = "| told | what |\n|---|---|\n| \"no such thing\" | x |\n| other | \"y\" |\n";
        assert_eq!(quoted(page).collect::<Vec<_>>(), ["no such thing"]);
    }
}
