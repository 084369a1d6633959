//! Each atomic says why its ordering is enough, and says it of the ordering that is used.

/// An atomic where it is declared.
#[derive(Debug, PartialEq, Eq)]
struct Atomic<'a> {
    line: usize,
    /// As it is called where it is used; `0` in a tuple.
    name: &'a str,
    /// What stands above it, or above the one that it follows, and above its type.
    reason: String,
}

/// Whether this file is read by those who build on us.
fn is_published(name: &str) -> bool {
    super::shape::ships(name) || name.starts_with("crates/lockkeeper-testkit/src/")
}

pub(super) fn check(name: &str, text: &str, complaints: &mut Vec<String>) {
    if !is_published(name) || text.contains("@generated") {
        return;
    }
    for atomic in declared(text) {
        let at = format!("{name}:{}: `{}`", atomic.line, atomic.name);
        let said: Vec<u8> = words(&atomic.reason).filter_map(strength).collect();
        let used = used(text, atomic.name).max_by_key(|it| strength(it));
        if said.is_empty() {
            complaints.push(format!(
                "{at}: say why its ordering is enough: Relaxed, Acquire and Release, or SeqCst"
            ));
        } else if let Some(used) = used.filter(|it| strength(it).is_some_and(|it| !said.contains(&it))) {
            complaints.push(format!("{at}: it is used with {used}, and the reason is of another ordering"));
        }
    }
}

/// How much an ordering orders. Acquire and Release are halves of one.
fn strength(word: &str) -> Option<u8> {
    match word {
        "Relaxed" => Some(0),
        "Acquire" | "Release" | "AcqRel" => Some(1),
        "SeqCst" => Some(2),
        _ => None,
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|it: char| !it.is_alphanumeric())
}

/// Fields, tuples and statics that are atomics or hold some. A borrowed one is declared elsewhere.
fn declared(text: &str) -> Vec<Atomic<'_>> {
    let (mut found, mut in_attribute) = (Vec::new(), false);
    let (mut above, mut before) = (String::new(), String::new());
    // The type whose fields are read: how far it is indented, and what is said of it.
    let mut body = None::<(&str, String)>;
    for (number, line) in text.lines().enumerate() {
        let inside = line.trim_start();
        if inside.starts_with("//") {
            above.push_str(inside);
            above.push('\n');
            continue;
        }
        if in_attribute || inside.starts_with("#[") {
            in_attribute = !inside.ends_with(']');
            continue;
        }
        let said = std::mem::take(&mut above);
        let indent = &line[..line.len() - inside.len()];
        let item = without_visibility(inside);
        if ["struct ", "enum "].iter().any(|it| item.starts_with(it)) && item.ends_with('{') {
            (body, before) = (Some((indent, said)), String::new());
            continue;
        }
        if inside == "}" && body.as_ref().is_some_and(|it| it.0 == indent) {
            body = None;
            continue;
        }
        let of = if let Some((_, of_type)) = &body { Some((item, of_type.as_str())) } else { alone(item) };
        let Some((item, of_type)) = of.filter(|it| names_atomic(it.0)) else {
            before.clear();
            continue;
        };
        if !said.is_empty() {
            before = said;
        }
        let name = if item.starts_with("struct ") { "0" } else { name_of(item) };
        found.push(Atomic { line: number + 1, name, reason: format!("{before}{of_type}") });
        if body.is_none() {
            before.clear();
        }
    }
    found
}

fn without_visibility(item: &str) -> &str {
    let Some(rest) = item.strip_prefix("pub") else { return item };
    let rest = if rest.starts_with('(') { rest.split_once(')').map_or(rest, |it| it.1) } else { rest };
    rest.strip_prefix(' ').unwrap_or(item)
}

/// What declares an atomic on a line of its own: a static, without its value, or a tuple.
fn alone(item: &str) -> Option<(&str, &str)> {
    let is_tuple = item.starts_with("struct ") && item.contains('(');
    let item = if item.starts_with("static ") { item.split(" = ").next() } else { Some(item) };
    item.filter(|it| is_tuple || it.starts_with("static ")).map(|it| (it, ""))
}

fn name_of(item: &str) -> &str {
    let item = item.strip_prefix("static ").unwrap_or(item);
    item.split([':', '(']).next().unwrap_or(item).trim()
}

/// Whether the type of an atomic stands here, not a call of it and not a borrow.
fn names_atomic(item: &str) -> bool {
    item.match_indices("Atomic").any(|(at, word)| {
        let rest = item[at..].trim_start_matches(|it: char| it.is_alphanumeric());
        let is_type = item[at + word.len()..].starts_with(char::is_uppercase) && !rest.starts_with("::");
        let path = item[..at].trim_end_matches(|it: char| it.is_alphanumeric() || it == ':' || it == '_');
        let lifetime = path.trim_end().trim_end_matches(|it: char| it.is_alphanumeric() || it == '_');
        is_type && !path.ends_with('&') && !lifetime.ends_with("&'")
    })
}

/// The orderings with which this file uses what has this name.
fn used<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let is_part = |it: char| it.is_alphanumeric() || it == '_';
    let mut found = Vec::new();
    for (at, _) in text.match_indices(name) {
        let rest = text[at + name.len()..].trim_start();
        let Some((call, arguments)) = rest.strip_prefix('.').and_then(|it| it.split_once('(')) else {
            continue;
        };
        let changes = ["fetch_", "compare_exchange"].iter().any(|it| call.starts_with(it));
        if !text[..at].ends_with(is_part) && (changes || ["load", "store", "swap"].contains(&call)) {
            found.extend(words(&arguments[..end_of(arguments)]).filter(|it| strength(it).is_some()));
        }
    }
    found.into_iter()
}

/// Where the arguments of a call end.
fn end_of(arguments: &str) -> usize {
    let mut open = 1;
    let closes = |(at, it): (usize, char)| {
        open += i32::from(it == '(') - i32::from(it == ')');
        (open == 0).then_some(at)
    };
    arguments.char_indices().find_map(closes).unwrap_or(arguments.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        check("crates/lockkeeper-redis/src/x.rs", text, &mut complaints);
        complaints
    }

    #[test]
    fn an_atomic_that_does_not_say_why_its_ordering_is_enough_is_noticed() {
        let missing = |line: usize, name: &str| {
            [format!(
                "crates/lockkeeper-redis/src/x.rs:{line}: `{name}`: say why its ordering is enough: \
                 Relaxed, Acquire and Release, or SeqCst"
            )]
        };
        assert_eq!(said("struct A {\n    /// How many.\n    open: AtomicU64,\n}\n"), missing(3, "open"));
        assert_eq!(said("struct A {\n    pub(crate) open: Arc<AtomicBool>,\n}\n"), missing(2, "open"));
        assert_eq!(said("    static MADE: AtomicU32 = AtomicU32::new(0);\n"), missing(1, "MADE"));
        assert_eq!(said("/// So many.\npub(crate) struct Count(AtomicU64);\n"), missing(2, "0"));
        let attribute = "    #[cfg_attr(\n        x,\n        y\n    )]\n";
        let field = format!("struct A {{\n    /// Relaxed: a hint.\n{attribute}    open: AtomicU64,\n}}\n");
        assert_eq!(said(&field), [""; 0]);
        assert_eq!(said(&field.replace("Relaxed: a hint", "A hint")), missing(7, "open"));
    }

    #[test]
    fn a_reason_stands_at_the_atomic_or_at_the_one_before_or_at_the_type() {
        let fields = "    one: AtomicU64,\n    two: [AtomicU64; 2],\n}\n";
        assert_eq!(said(&format!("struct A {{\n    /// Relaxed: hints.\n{fields}")), [""; 0]);
        assert_eq!(
            said(&format!("/// Relaxed: hints.\n#[derive(Debug)]\npub struct A {{\n{fields}")),
            [""; 0]
        );
        assert_eq!(said("/// Relaxed: a hint.\nstatic A: AtomicU64 = AtomicU64::new(0);\n"), [""; 0]);
        // What something else or another type says is of that.
        let apart = "struct A {\n    /// Relaxed: a hint.\n    one: AtomicU64,\n    name: u8,\n    two: AtomicU64,\n}\n";
        assert_eq!(said(apart).len(), 1);
        let types =
            "/// Relaxed.\nstruct A {\n    one: AtomicU64,\n}\n\nstruct B {\n    two: AtomicU64,\n}\n";
        assert_eq!(said(types).len(), 1);
    }

    #[test]
    fn a_reason_is_of_the_ordering_that_is_used() {
        let file = |used: &str| {
            format!(
                "struct A {{\n    /// Relaxed: a hint.\n    open: AtomicU64,\n}}\nself.open\n    .store(at(1), {used});\n"
            )
        };
        assert_eq!(said(&file("Ordering::Relaxed")), [""; 0]);
        let other = "crates/lockkeeper-redis/src/x.rs:3: `open`: it is used with SeqCst, and the reason is of \
                     another ordering";
        assert_eq!(said(&file("SeqCst")), [other]);
        // Half of a pair may name the other half, and what fails may be weaker.
        let pair =
            "struct A(/* */ AtomicU64);\nit.0.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);\n";
        assert_eq!(said(&format!("/// Acquire and Release: who sees it sees the rest.\n{pair}")), [""; 0]);
        assert_eq!(said(&format!("/// Relaxed.\n{pair}")).len(), 1);
        // Another one of a longer name is another one.
        assert_eq!(
            said("struct A {\n    /// Relaxed.\n    open: AtomicU64,\n}\nre_open.load(SeqCst);\n"),
            [""; 0]
        );
    }

    #[test]
    fn what_is_no_declaration_or_not_published_is_left_alone() {
        for other in [
            "struct A<'a>(&'a AtomicU64);\n",
            "struct A<'a> {\n    it: &'a std::sync::atomic::AtomicU64,\n}\n",
            "fn a(\n    it: Arc<AtomicBool>,\n) {\n    let it = Arc::<AtomicBool>::default();\n}\n",
            "let it = A {\n    open: AtomicU64::new(0),\n};\n",
            "use std::sync::atomic::{AtomicU64, Ordering};\n",
        ] {
            assert_eq!(said(other), [""; 0], "{other}");
        }
        let mut complaints = Vec::new();
        check("crates/lockkeeper-bench/src/x.rs", "static A: AtomicU64 = it;\n", &mut complaints);
        assert_eq!(complaints, [""; 0]);
        check("crates/lockkeeper-testkit/src/x.rs", "static A: AtomicU64 = it;\n", &mut complaints);
        assert_eq!(complaints.len(), 1);
    }
}
