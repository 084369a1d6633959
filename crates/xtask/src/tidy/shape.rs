//! The shape of what ships: open types, no test code, one clock, the same rooms in every store.

use std::fs;
use std::path::Path;

/// Where types are public only to the rest of this house: the command and what is a part of it, and what `#[locked]` calls.
const CLOSED: &[&str] = &[
    "crates/lockkeeper-cli/",
    "crates/lockkeeper-demo/",
    "crates/lockkeeper-torture/",
    "crates/lockkeeper/src/locked.rs",
];

/// Public types that are complete as they are, with the reason.
const COMPLETE: &[(&str, &str)] = &[
    ("Turn", "an answer is either or; its variants are open"),
    ("Renewal", "an answer is either or; its variants are open"),
    ("Host", "a name and a port"),
    (
        "FencedError::Stale",
        "checkers of other people's databases make it; it says all that such a refusal is",
    ),
];

/// Words by which code reads a clock or sleeps.
const TIME: &[&str] = &[
    "thread::sleep",
    "thread::park_timeout",
    "tokio::time::",
    "SystemTime::now",
    "Instant::now",
    "clock_gettime",
    ".recv_timeout(",
    ".wait_timeout(",
    ".wait_timeout_while(",
    "time::timeout(",
    "nanosleep",
    "Timespec",
];
/// Where it may, and the one word of the two that only wait for a file at most so long.
const TIMED: &[(&str, &str)] = &[
    ("lockkeeper-core/src/clock.rs", ""),
    ("lockkeeper-sqlite/src/bell.rs", "Timespec"),
    ("lockkeeper-cli/src/run/warden.rs", "Timespec"),
];

/// By which code behaves otherwise where it is tested, or not optimised. What is only there in tests is `#[cfg(test)]`.
const TEST_BUILDS: &[&str] =
    &["cfg!(test)", "any(test", "all(test", "not(test", ", test)", ", test,", "(debug_assertions"];

/// What every store has, whatever else it needs: the roles that whoever knows one store looks for in the next.
const STORE_FILES: &[&str] =
    &["options.rs", "connection.rs", "place.rs", "wake.rs", "admin.rs", "doctor.rs", "fault.rs"];

/// How every store is opened, in its `lib.rs` or `mod.rs`.
const DOORS: &[&str] = &["pub async fn connect(url: &str)", "pub async fn with(options: "];
/// And how it reads what can be chosen, in its `options.rs`.
const CHOICES: &[&str] = &["Options", "pub fn parse(url: &str)", "kit::settings::"];

/// The stores, and which of the files one has no use for.
const STORES: &[(&str, &[&str])] = &[
    ("lockkeeper-sqlite/src", &[]),
    ("lockkeeper-redis/src", &[]),
    ("lockkeeper-redlock/src", &["connection.rs", "wake.rs", "fault.rs"]),
    ("lockkeeper-sql/src/postgres", &[]),
    ("lockkeeper-sql/src/mysql", &[]),
    ("lockkeeper-etcd/src", &[]),
    ("lockkeeper-zookeeper/src", &[]),
];

/// The session stores, which share all else, and what each has of its own.
const SESSION_STORES: &[&str] =
    &["lockkeeper-sql/src/postgres/sessions", "lockkeeper-sql/src/mysql/sessions"];
const SESSION_FILES: &[&str] = &["admin.rs", "doctor.rs", "line.rs", "schema.rs"];

/// Whether a file is part of what users build.
pub(super) fn ships(name: &str) -> bool {
    let ours = [
        "lockkeeper-testkit",
        "lockkeeper-servers",
        "lockkeeper-bench",
        "lockkeeper-book",
        "lockkeeper-interleaving",
        "lockkeeper-nemesis",
        "lockkeeper-redlock-model",
        "xtask",
    ];
    name.starts_with("crates/")
        && name.contains("/src/")
        && !ours.iter().any(|it| name.starts_with(&format!("crates/{it}/")))
}

/// One file of what ships.
pub(super) fn file(name: &str, text: &str, complaints: &mut Vec<String>) {
    let code = &without_tests(text);
    for (number, line) in code.lines().enumerate() {
        let (at, line) = (format!("{name}:{}", number + 1), line.trim_start());
        if line.starts_with("//") {
            continue;
        }
        let may = |word: &str| TIMED.iter().any(|it| name.ends_with(it.0) && word.starts_with(it.1));
        for word in TIME.iter().filter(|it| line.contains(**it) && !may(it)) {
            complaints.push(format!("{at}: `{word}`: only clock.rs reads a clock or sleeps"));
        }
        let for_tests =
            ["mutant", "test", "mock", "chaos"].iter().any(|it| line.contains(&format!("feature = \"{it}")));
        let for_tests = for_tests && !line.contains("test-util");
        if line.contains("cfg") && (for_tests || TEST_BUILDS.iter().any(|it| line.contains(it))) {
            complaints.push(format!("{at}: what ships has no code for tests; plant mistakes by a patch"));
        }
    }
    if !CLOSED.iter().any(|it| name.starts_with(it)) && !text.contains("@generated") {
        open_types(name, code, complaints);
        open_variants(name, code, complaints);
    }
}

/// The text without what is only there in tests, line by line in the same place.
fn without_tests(text: &str) -> String {
    let (mut code, mut lines) = (String::new(), text.lines());
    while let Some(line) = lines.next() {
        let inside = line.trim_start();
        if inside.starts_with("#[cfg(test)]") {
            let indent = &line[..line.len() - inside.len()];
            let mut item = inside.trim_start_matches("#[cfg(test)]").trim();
            // Other attributes may stand before the item.
            while item.is_empty() || item.starts_with("#[") {
                code.push('\n');
                item = lines.next().unwrap_or(";").trim();
            }
            if item.ends_with('{') {
                let end = format!("{indent}}}");
                code.extend(lines.by_ref().take_while(|it| *it != end).map(|_| '\n'));
                code.push('\n');
            }
        } else {
            code.push_str(line);
        }
        code.push('\n');
    }
    code
}

/// Public enums and structs with public fields can grow.
fn open_types(name: &str, code: &str, complaints: &mut Vec<String>) {
    let mut open = false;
    let lines: Vec<&str> = code.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        if line.starts_with("#[non_exhaustive]") {
            open = true;
        } else if let Some(rest) = line.strip_prefix("pub enum ").or_else(|| line.strip_prefix("pub struct "))
        {
            let of_fields = line.ends_with('{')
                && lines[number + 1..]
                    .iter()
                    .take_while(|it| !it.starts_with('}'))
                    .any(|it| it.starts_with("    pub "));
            let kind: String = rest.chars().take_while(|it| it.is_alphanumeric()).collect();
            let grows = line.starts_with("pub enum ") || of_fields;
            if grows && !open && !COMPLETE.iter().any(|it| it.0 == kind) {
                complaints.push(format!(
                    "{name}:{}: `{kind}` cannot grow: `#[non_exhaustive]`, and a constructor",
                    number + 1
                ));
            }
            open = false;
        } else if !line.starts_with("#[") {
            open = false;
        }
    }
}

/// Variants of public enums that have named fields can grow, too: another field would break whoever names them all.
fn open_variants(name: &str, code: &str, complaints: &mut Vec<String>) {
    let (mut of, mut open) = (None, false);
    for (number, line) in code.lines().enumerate() {
        if let Some(rest) = line.strip_prefix("pub enum ") {
            of = Some(rest.chars().take_while(|it| it.is_alphanumeric()).collect::<String>());
        } else if line.starts_with('}') {
            of = None;
        }
        let Some(of) = &of else { continue };
        let Some(inside) = line.strip_prefix("    ").filter(|it| !it.starts_with([' ', '}'])) else {
            continue;
        };
        let is_variant = inside.starts_with(char::is_uppercase) && inside.contains(" {");
        let kind = format!("{of}::{}", inside.split(' ').next().unwrap_or_default());
        if is_variant && !open && !COMPLETE.iter().any(|it| it.0 == kind) {
            complaints.push(format!("{name}:{}: `{kind}` cannot grow: `#[non_exhaustive]`", number + 1));
        }
        open = inside.starts_with("#[non_exhaustive]") || (open && inside.starts_with(['#', '/']));
    }
}

/// Every store has the same rooms.
pub(super) fn stores(root: &Path, complaints: &mut Vec<String>) {
    for folder in SESSION_STORES {
        for file in SESSION_FILES.iter().filter(|it| !root.join("crates").join(folder).join(it).exists()) {
            complaints.push(format!("crates/{folder}: there is no {file}, which every session store has"));
        }
    }
    for (folder, without) in STORES {
        for file in STORE_FILES.iter().filter(|it| !without.contains(it)) {
            if !root.join("crates").join(folder).join(file).exists() {
                complaints.push(format!("crates/{folder}: there is no {file}, which every store has"));
            }
        }
        let read =
            |file: &str| fs::read_to_string(root.join("crates").join(folder).join(file)).unwrap_or_default();
        doors(folder, &(read("lib.rs") + &read("mod.rs")), &read("options.rs"), complaints);
        let store = folder.split('/').next().unwrap_or_default();
        if !root.join("crates").join(store).join("tests/conformance.rs").exists() {
            complaints.push(format!("crates/{store}: the suite stands in tests/conformance.rs"));
        }
    }
}

/// Every store is opened in the same way, and reads its URL in the same way.
fn doors(folder: &str, store: &str, options: &str, complaints: &mut Vec<String>) {
    for door in DOORS.iter().filter(|it| !store.contains(**it)) {
        complaints.push(format!("crates/{folder}: no `{door}…)`, by which every store is opened"));
    }
    for choice in CHOICES.iter().filter(|it| !options.contains(**it)) {
        complaints.push(format!("crates/{folder}/options.rs: no `{choice}`, as in every store"));
    }
    for (number, line) in options.lines().enumerate().filter(|it| it.1.starts_with("    pub ")) {
        if line.contains(": ") && !line.contains("fn ") {
            complaints.push(format!(
                "crates/{folder}/options.rs:{}: a public field; options have setters",
                number + 1
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{SESSION_FILES, SESSION_STORES, STORE_FILES, STORES, doors, file, ships, stores};

    #[test]
    fn a_store_that_lacks_what_every_store_has_is_noticed() {
        let root = std::env::temp_dir().join(format!("lockkeeper-shape-{}", std::process::id()));
        let of = |folder: &str| root.join("crates").join(folder);
        let said = || {
            let mut complaints = Vec::new();
            stores(&root, &mut complaints);
            complaints
        };
        let store = "pub async fn connect(url: &str) {}\npub async fn with(options: XOptions) {}";
        let options =
            "use kit::settings::Form;\npub struct XOptions {\n    x: u8,\n}\npub fn parse(url: &str) {}";
        for (folder, without) in STORES {
            std::fs::create_dir_all(of(folder)).unwrap();
            for name in STORE_FILES.iter().filter(|it| !without.contains(it)) {
                std::fs::write(of(folder).join(name), options).unwrap();
            }
            std::fs::write(of(folder).join("mod.rs"), store).unwrap();
            let tests = of(folder.split('/').next().unwrap()).join("tests");
            std::fs::create_dir_all(&tests).unwrap();
            std::fs::write(tests.join("conformance.rs"), "").unwrap();
        }
        for folder in SESSION_STORES {
            std::fs::create_dir_all(of(folder)).unwrap();
            for name in SESSION_FILES {
                std::fs::write(of(folder).join(name), "").unwrap();
            }
        }
        assert_eq!(said(), [""; 0]);
        let line = of(SESSION_STORES[1]).join("line.rs");
        std::fs::remove_file(&line).unwrap();
        let lacking =
            "crates/lockkeeper-sql/src/mysql/sessions: there is no line.rs, which every session store has";
        assert_eq!(said(), [lacking]);
        std::fs::write(&line, "").unwrap();
        for (folder, without) in STORES {
            for name in STORE_FILES.iter().filter(|it| !without.contains(it) && **it != "options.rs") {
                std::fs::remove_file(of(folder).join(name)).unwrap();
                assert_eq!(said(), [format!("crates/{folder}: there is no {name}, which every store has")]);
                std::fs::write(of(folder).join(name), "").unwrap();
            }
        }
        std::fs::write(of("lockkeeper-etcd/src/mod.rs"), store.replace("connect", "open")).unwrap();
        assert_eq!(said().len(), 1);
        std::fs::remove_file(of("lockkeeper-sqlite/tests/conformance.rs")).unwrap();
        assert_eq!(said().len(), 2);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_store_with_another_door_is_noticed() {
        let said = |store: &str, options: &str| {
            let mut complaints = Vec::new();
            doors("x", store, options, &mut complaints);
            complaints.len()
        };
        let store = "pub async fn connect(url: &str) {}\npub async fn with(options: XOptions) {}";
        let options =
            "use kit::settings::Form;\npub struct XOptions {\n    x: u8,\n}\npub fn parse(url: &str) {}";
        assert_eq!(said(store, options), 0);
        assert_eq!(said("pub async fn open(url: &str) {}", options), 2);
        assert_eq!(said(store, ""), 3);
        assert_eq!(said(store, &options.replace("    x:", "    pub x:")), 1);
    }

    fn complaints(name: &str, text: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        file(name, text, &mut complaints);
        complaints
    }

    #[test]
    fn a_type_that_cannot_grow_is_noticed() {
        let core = "crates/lockkeeper-core/src/spi/x.rs";
        assert_eq!(complaints(core, "#[derive(Debug)]\npub enum Colour {\n    Red,\n}\n").len(), 1);
        assert_eq!(complaints(core, "pub struct Point {\n    pub x: u32,\n}\n").len(), 1);
        assert_eq!(
            complaints(core, "#[derive(Debug)]\n#[non_exhaustive]\npub enum Colour {\n    Red,\n}\n"),
            [""; 0]
        );
        assert_eq!(complaints(core, "pub struct Point {\n    x: u32,\n}\n"), [""; 0]);
        // Each variant with named fields, too.
        let variants = |attribute: &str, line: &str| {
            complaints(
                core,
                &format!("#[non_exhaustive]\npub enum Colour {{\n    Red(u8),\n{attribute}    {line}\n}}\n"),
            )
        };
        for line in ["Mixed {\n        red: u8,\n    },", "Mixed { red: u8 },"] {
            assert_eq!(variants("", line).len(), 1, "{line}");
            assert_eq!(variants("    #[non_exhaustive]\n    #[error(\"it\")]\n", line), [""; 0], "{line}");
        }
        // Whatever a user can name, in whichever crate.
        let of =
            |name: &str| complaints(&format!("crates/{name}.rs"), "pub enum Colour {\n    Red,\n}\n").len();
        for open in ["lockkeeper/src/x", "lockkeeper-twophase/src/x", "lockkeeper-serve/src/x"] {
            assert_eq!(of(open), 1, "{open}");
        }
        assert_eq!((of("lockkeeper-cli/src/x"), of("lockkeeper/src/locked")), (0, 0));
    }

    #[test]
    fn clocks_and_test_code_in_what_ships_are_noticed() {
        assert_eq!(complaints("crates/lockkeeper/src/x.rs", "std::thread::sleep(it);\n").len(), 1);
        assert_eq!(complaints("crates/lockkeeper/src/x.rs", "receiver.recv_timeout(it);\n").len(), 1);
        for other in
            ["time::timeout(span, it).await;", "libc::nanosleep(it);", "bell.wait_timeout_while(a, b, c);"]
        {
            assert_eq!(complaints("crates/lockkeeper/src/x.rs", &format!("{other}\n")).len(), 1, "{other}");
        }
        let bell = "crates/lockkeeper-sqlite/src/bell.rs";
        assert_eq!(complaints(bell, "poll(ends, Some(&Timespec::try_from(it)?));\n"), [""; 0]);
        assert_eq!(complaints(bell, "std::thread::sleep(it);\n").len(), 1);
        assert_eq!(complaints("crates/lockkeeper/src/x.rs", "#[cfg(feature = \"mutants\")]\n").len(), 1);
        assert_eq!(
            complaints("crates/lockkeeper/src/x.rs", "// thread::sleep\n#[cfg(test)]\nInstant::now()"),
            [""; 0]
        );
        let ours = |text: &str| complaints("crates/lockkeeper/src/x.rs", text).len();
        for other in [
            "cfg!(test)",
            "#[cfg(any(test, unix))]",
            "#[cfg(not(test))]",
            "#[cfg(all(unix, test))]",
            "#[cfg(debug_assertions)]",
        ] {
            assert_eq!(ours(&format!("fn a() {{\n    {other}\n}}\n")), 1, "{other}");
        }
        assert_eq!(ours("#[cfg_attr(docsrs, doc(cfg(feature = \"test-util\")))]\ndebug_assert!(a);\n"), 0);
        // What stands behind the tests is read, too.
        for tests in ["mod tests {\n    use x;\n}", "use x::Y;", "#[allow(unused)]\nfn a() {\n    it()\n}"] {
            assert_eq!(ours(&format!("#[cfg(test)]\n{tests}\n")), 0);
            let told = complaints(
                "crates/lockkeeper/src/x.rs",
                &format!("#[cfg(test)]\n{tests}\nthread::sleep(it);\n"),
            );
            let line = tests.lines().count() + 2;
            assert!(told.len() == 1 && told[0].contains(&format!("x.rs:{line}:")), "{told:?}");
        }
        assert!(ships("crates/lockkeeper-redis/src/lib.rs"));
        assert!(!ships("crates/lockkeeper-redis/tests/x.rs") && !ships("crates/xtask/src/main.rs"));
    }
}
