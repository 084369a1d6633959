//! `lockkeeper ls`: the locks that are held or waited for.

use lockkeeper::spi::{LockInfo, Occupant};
use serde::Serialize;
use unicode_width::UnicodeWidthChar;

use crate::args::Ls;
use crate::exit::Result;
use crate::output::{self, span};
use crate::store::Target;
use crate::{text, view};

#[derive(Serialize)]
struct List {
    locks: Vec<view::Lock>,
}

pub(crate) async fn ls(target: &Target, args: &Ls) -> Result<u8> {
    let prefix = args.prefix()?;
    let store = target.open().await?;
    let locks = store.inspect.list(prefix).await.map_err(|it| target.failure(it))?;
    if args.json.json {
        let locks = locks.iter().map(view::Lock::of).collect();
        output::json(&List { locks })?;
    } else if locks.is_empty() {
        output::say("no lock is held or waited for");
    } else {
        output::data(&table(&locks))?;
    }
    Ok(0)
}

const HEADING: [&str; 7] = ["NAME", "HOLDER", "NOTE", "HELD FOR", "FENCE", "VALID FOR", "WAITERS"];

fn table(locks: &[LockInfo]) -> String {
    let mut rows = Vec::new();
    for lock in locks {
        if lock.holders.is_empty() {
            rows.push(row(lock, None));
        }
        rows.extend(lock.holders.iter().map(|it| row(lock, Some(it))));
    }
    output::table(HEADING, &rows)
}

/// The name stands in every row, so that `grep` finds it.
fn row(lock: &LockInfo, holder: Option<&Occupant>) -> [String; 7] {
    let of_holder = |show: &dyn Fn(&Occupant) -> String| holder.map_or_else(|| "-".to_owned(), show);
    [
        text::cell(lock.key.as_str()),
        of_holder(&view::who),
        of_holder(&|it| view::note(it).map_or_else(|| "-".into(), |it| shortened(&it))),
        of_holder(&view::since),
        of_holder(&|it| it.fence.map_or_else(|| "?".to_owned(), |it| it.to_string())),
        of_holder(&|it| span(it.valid_for)),
        lock.waiters.len().to_string(),
    ]
}

/// Columns that a note may take in the list; `show` has all of it.
const NOTE_COLUMNS: usize = 40;

fn shortened(note: &str) -> String {
    let mut columns = 0;
    let fits = |it: &char| {
        columns += it.width().unwrap_or(0);
        columns < NOTE_COLUMNS
    };
    let kept: String = note.chars().take_while(fits).collect();
    if kept.len() == note.len() { kept } else { kept + "…" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper::{Fence, Key, Label};

    use super::*;

    fn occupant(note: &str) -> Occupant {
        let label = Label::new("h\x1b[2J", 7, Some("\u{202e}eve".into()), Some(note.into()));
        Occupant::new(label, Duration::from_secs(9))
            .since(Some(Duration::from_secs(90)))
            .fence(Some(Fence::of_grant(1)))
    }

    fn lock(name: &str, holders: Vec<Occupant>, waiters: Vec<Occupant>) -> LockInfo {
        let key = Key::new(name).unwrap();
        LockInfo::new(key, holders, waiters)
    }

    #[test]
    fn a_hostile_label_cannot_move_the_cursor() {
        let locks = [
            lock("a", vec![occupant("line\nbreak\u{9b}31m")], vec![occupant("x")]),
            lock("\u{202e}b", vec![], vec![occupant("x")]),
        ];
        let expected = "\
NAME       HOLDER                        NOTE                  HELD FOR  FENCE  VALID FOR  WAITERS
a          h\\u{1b}[2J:7 \\u{202e}eve  line\\u{a}break\\u{9b}31m  1m 30s    65536  9s         1
\\u{202e}b  -                             -                     -         -      -          1
";
        let squeezed = |it: &str| it.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(squeezed(&table(&locks)), squeezed(expected));
    }

    #[test]
    fn a_long_note_is_shortened() {
        let short = shortened(&"注".repeat(100));
        assert_eq!(short.chars().count(), 20);
        assert!(short.ends_with('…'));
        assert_eq!(shortened("short"), "short");
    }
}
