//! The table that a run ends with: ours, theirs, the ratio, and the bound it must keep.

use std::io::Write;
use std::sync::OnceLock;
use std::time::Duration;

/// One comparison.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) ours: String,
    pub(crate) theirs: String,
    /// Ours by theirs, or another number that the bound is about.
    pub(crate) ratio: f64,
    pub(crate) bound: Bound,
    /// Commands per guard and the like.
    pub(crate) note: String,
}

/// What the ratio must keep.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// This number, and at most so far from it: less would be as wrong as more.
    Near(f64, f64),
    /// Nothing: the row is there to be compared with.
    Shown,
}

impl Row {
    /// Two times per operation, of which ours may be larger by a factor.
    pub(crate) fn of_times(what: &'static str, (ours, theirs): (Duration, Duration), at_most: f64) -> Self {
        Row {
            what,
            ours: format!("{ours:.1?}"),
            theirs: format!("{theirs:.1?}"),
            ratio: ours.as_secs_f64() / theirs.as_secs_f64(),
            bound: Bound::AtMost(at_most),
            note: String::new(),
        }
    }

    /// Two rates, of which ours must be larger by a factor.
    pub(crate) fn of_rates(what: &'static str, (ours, theirs): (f64, f64), at_least: f64) -> Self {
        Row {
            what,
            ours: format!("{ours:.0}/s"),
            theirs: format!("{theirs:.0}/s"),
            ratio: ours / theirs,
            bound: Bound::AtLeast(at_least),
            note: String::new(),
        }
    }

    /// A number that is a ratio by itself.
    pub(crate) fn of_number(what: &'static str, number: f64, bound: Bound) -> Self {
        let (ours, theirs, note) = (format!("{number:.3}"), String::new(), String::new());
        Row { what, ours, theirs, ratio: number, bound, note }
    }

    /// As it stands in a table.
    fn line(&self) -> String {
        let bound = match self.bound {
            Bound::AtMost(it) => format!("≤ {it}"),
            Bound::AtLeast(it) => format!("≥ {it}"),
            Bound::Near(it, by) => format!("{it} ± {by}"),
            Bound::Shown => "–".to_owned(),
        };
        let kept = match self.bound {
            Bound::Shown => "–",
            _ if self.within() => "yes",
            _ => "**no**",
        };
        let Row { what, ours, theirs, ratio, note, .. } = self;
        format!("| {what} | {ours} | {theirs} | {ratio:.2} | {bound} | {kept} | {note} |")
    }

    pub(crate) fn within(&self) -> bool {
        match self.bound {
            Bound::AtMost(it) => self.ratio <= it,
            Bound::AtLeast(it) => self.ratio >= it,
            Bound::Near(it, by) => (self.ratio - it).abs() <= by,
            Bound::Shown => true,
        }
    }
}

/// The word that steps of a suite have in common if not all are wanted.
static ONLY: OnceLock<String> = OnceLock::new();

/// Take only the steps whose words have this in them.
pub(crate) fn only(word: &str) {
    // It is said once, on the command line.
    let _ = ONLY.set(word.to_owned());
}

/// Whether this step of a suite is wanted. Told to whoever watches if it is.
pub(crate) fn begins(step: &str) -> bool {
    let wanted = ONLY.get().is_none_or(|it| step.contains(it.as_str()));
    if wanted {
        say(step);
    }
    wanted
}

/// Tell whoever watches.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "bench: {text}");
}

/// Rows that are known, told as they come: a suite may take long.
pub(crate) fn told(rows: Vec<Row>) -> Vec<Row> {
    for row in &rows {
        say(&row.line());
    }
    rows
}

/// One table under its heading, at once, so that a long run shows what it has.
pub(crate) fn print(title: &str, rows: &[Row]) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n## {title}\n");
    let _ = writeln!(out, "| what | ours | beside it | ratio | must be | kept | note |");
    let _ = writeln!(out, "|---|---|---|---|---|---|---|");
    for row in rows {
        let _ = writeln!(out, "{}", row.line());
    }
}
