//! How to look at a list of locks: its arguments, its order, and its table.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkeeper::spi::{LockInfo, Occupant};

use crate::args::{Json, some_span};
use crate::exit::{self, Failure, Result};
use crate::output::span;
use crate::screen::{Screen, Tone};
use crate::table::{self, Cell, Column, Gives};
use crate::{text, view};

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By name
    Name,
    /// Those that most wait for
    Waiters,
    /// Those that are held longest
    Held,
    /// Those that end soonest unless they are renewed
    Valid,
}

impl Sort {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::Waiters => "waiters",
            Sort::Held => "held",
            Sort::Valid => "valid",
        }
    }

    pub(crate) fn apply(self, locks: &mut [LockInfo]) {
        let held = |it: &LockInfo| it.holders.iter().filter_map(|it| it.since).max();
        let valid = |it: &LockInfo| it.holders.iter().map(|it| it.valid_for).min().unwrap_or(Duration::MAX);
        match self {
            Sort::Name => locks.sort_by(|one, other| one.key.cmp(&other.key)),
            Sort::Waiters => locks.sort_by_cached_key(|it| (Reverse(it.waiters.len()), it.key.clone())),
            Sort::Held => locks.sort_by_cached_key(|it| (Reverse(held(it)), it.key.clone())),
            Sort::Valid => locks.sort_by_cached_key(|it| (valid(it), it.key.clone())),
        }
    }
}

/// Which locks, and how often to look.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Only names that begin with this
    prefix: Option<OsString>,

    /// How long to pause between two looks
    #[arg(long, value_name = "DUR", value_parser = some_span, default_value = "1s", allow_hyphen_values = true)]
    pub(crate) every: Duration,
}

impl Which {
    pub(crate) fn prefix(&self) -> Result<&str> {
        let prefix = self.prefix.as_deref().unwrap_or_default();
        prefix.to_str().ok_or_else(|| {
            Failure::new(exit::USAGE, "the prefix is not UTF-8, so no lock's name begins with it")
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) which: Which,

    /// What comes first
    #[arg(long, value_enum, default_value_t = Sort::Name)]
    pub(crate) sort: Sort,

    /// Go on and look again and again, until you end it
    #[arg(long)]
    pub(crate) watch: bool,

    /// Tell also what leaders let everybody read; one more question for each lock
    #[arg(long, conflicts_with = "watch")]
    pub(crate) leaders: bool,

    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) which: Which,

    /// What comes first
    #[arg(long, value_enum, default_value_t = Sort::Waiters)]
    pub(crate) sort: Sort,

    /// Look once and end
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Doctor {
    /// Tell also what is fine
    #[arg(long)]
    pub(crate) all: bool,

    /// Exit with 1 for a warning, too: for gates of a deployment
    #[arg(long)]
    pub(crate) strict: bool,

    #[command(flatten)]
    pub(crate) json: Json,
}

const COLUMNS: [Column; 8] = [
    Column { heading: "NAME", gives: Gives::To(12) },
    Column { heading: "HOLDER", gives: Gives::To(12) },
    Column { heading: "KIND", gives: Gives::To(4) },
    Column { heading: "NOTE", gives: Gives::To(4) },
    Column { heading: "HELD FOR", gives: Gives::Never },
    Column { heading: "FENCE", gives: Gives::All },
    Column { heading: "VALID FOR", gives: Gives::Never },
    Column { heading: "WAITERS", gives: Gives::Never },
];

/// The lines of the list, the heading first.
pub(crate) fn lines(locks: &[LockInfo], screen: Screen) -> Vec<String> {
    let mut rows = Vec::new();
    for lock in locks {
        if lock.holders.is_empty() && lock.foreign.is_empty() {
            rows.push(row(lock, None));
        }
        rows.extend(lock.holders.iter().map(|it| row(lock, Some(it))));
        rows.extend(lock.foreign.iter().map(|it| foreign(lock, it)));
    }
    table::lines(&COLUMNS, &rows, screen)
}

/// Something in the line that is not ours keeps others out as a holder does.
fn foreign(lock: &LockInfo, what: &str) -> [Cell; 8] {
    let mut row = row(lock, None);
    row[1] = Cell::toned(FOREIGN, Tone::Bad);
    row[3] = table::shortened(&text::cell(what), NOTE_COLUMNS).into();
    row
}

const FOREIGN: &str = "(foreign)";

/// Columns that a note may take in the list; `show` has all of it.
const NOTE_COLUMNS: usize = 40;

/// The name stands in every row, so that `grep` finds it.
fn row(lock: &LockInfo, holder: Option<&Occupant>) -> [Cell; 8] {
    let of_holder = |show: &dyn Fn(&Occupant) -> String| holder.map_or_else(|| "-".to_owned(), show);
    let waiters = if lock.waiters.is_empty() { Tone::Plain } else { Tone::Warning };
    // A lock that lives is renewed long before: what ends this soon has a holder in trouble.
    let ends_soon = holder.is_some_and(|it| it.valid_for < Duration::from_secs(1));
    let valid = if ends_soon { Tone::Bad } else { Tone::Plain };
    let note = |it: &Occupant| view::holders_note(it).map(|it| table::shortened(&it, NOTE_COLUMNS));
    [
        text::cell(lock.key.as_str()).into(),
        of_holder(&view::who).into(),
        of_holder(&|it| view::Kind::of(it.load).to_string()).into(),
        of_holder(&|it| note(it).unwrap_or_else(|| "-".into())).into(),
        of_holder(&view::since).into(),
        of_holder(&|it| it.fence.map_or_else(|| "?".to_owned(), |it| it.to_string())).into(),
        Cell::toned(of_holder(&|it| span(it.valid_for)), valid),
        Cell::toned(view::crowd(&lock.waiters), waiters),
    ]
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Fence, Key, Label};

    use super::*;

    fn occupant(note: &str) -> Occupant {
        let label = Label::new("h\x1b[2J", 7, Some("\u{202e}eve".into()), Some(note.into()));
        Occupant::new(label, Duration::from_secs(9))
            .since(Some(Duration::from_secs(90)))
            .fence(Some(Fence::of_grant(1)))
    }

    fn lock(name: &str, holders: Vec<Occupant>, waiters: Vec<Occupant>) -> LockInfo {
        LockInfo::new(Key::new(name).unwrap(), holders, waiters)
    }

    fn shown(locks: &[LockInfo]) -> Vec<Vec<String>> {
        let lines = lines(locks, Screen::default());
        lines.iter().map(|it| it.split_whitespace().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn a_hostile_label_cannot_move_the_cursor() {
        let locks = [
            lock("a", vec![occupant("line\nbreak\u{9b}31m")], vec![occupant("x")]),
            lock("\u{202e}b", vec![], vec![occupant("x")]),
        ];
        let expected = "\
NAME       HOLDER                        KIND  NOTE                  HELD FOR  FENCE  VALID FOR  WAITERS
a          h\\u{1b}[2J:7 \\u{202e}eve  lock  line\\u{a}break\\u{9b}31m  1m 30s    65536  9s         1
\\u{202e}b  -                             -     -                     -         -      -          1";
        let squeezed = |it: &str| it.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(shown(&locks), expected.lines().map(squeezed).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_not_ours_has_a_row_of_its_own() {
        let mut lock = lock("a", vec![], vec![occupant("x")]);
        lock.foreign = vec!["\x1b[2Jkey".into(), "another".into()];
        let rows = shown(&[lock]);
        let expected = |what| vec!["a", "(foreign)", "-", what, "-", "-", "-", "1"];
        assert_eq!(rows[1..], [expected("\\u{1b}[2Jkey"), expected("another")]);
    }

    #[test]
    fn each_order_has_its_first() {
        let held = |secs| occupant("n").since(Some(Duration::from_secs(secs)));
        let mut locks = [
            lock("b", vec![held(5).valid_for(Duration::from_secs(8))], vec![occupant("x"), occupant("y")]),
            lock("a", vec![held(50)], vec![]),
            lock("c", vec![], vec![occupant("x")]),
            lock("d", vec![occupant("n").since(None).valid_for(Duration::from_secs(1))], vec![]),
        ];
        let mut order = |sort: Sort| {
            sort.apply(&mut locks);
            locks.iter().map(|it| it.key.as_str().to_owned()).collect::<String>()
        };
        assert_eq!(order(Sort::Waiters), "bcad");
        assert_eq!(order(Sort::Held), "abcd");
        assert_eq!(order(Sort::Valid), "dbac");
        assert_eq!(order(Sort::Name), "abcd");
    }
}
