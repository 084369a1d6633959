//! The page of all rivals: one table per store, who is ahead where, and why not if it is not us.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::fight::World;
use super::figures::Figures;
use super::list::reason;
use super::{command, plot};
use crate::Answer;
use crate::measure::median;
use crate::site::Store;

/// More of the machine than this was in use before we began: what it measures then is a shape, no figure.
const BUSY: f64 = 0.25;
/// By this factor somebody is ahead.
const AHEAD: f64 = 1.1;

/// What was measured on one store.
pub(super) struct Sheet {
    store: Store,
    lines: Vec<Line>,
}

/// What is compared in a column: more is better.
type Figure = fn(&Line) -> Option<f64>;

/// What was measured of one contestant.
struct Line {
    name: &'static str,
    /// Why it could not be measured here.
    missing: Option<String>,
    worlds: Vec<(World, Vec<Figures>)>,
    failed: Vec<(World, String)>,
    crashes: Vec<Duration>,
}

impl Sheet {
    pub(super) fn new(store: Store, names: Vec<&'static str>) -> Self {
        let worlds = || World::ALL.map(|it| (it, Vec::new())).to_vec();
        let line =
            |name| Line { name, missing: None, worlds: worlds(), failed: Vec::new(), crashes: Vec::new() };
        Sheet { store, lines: names.into_iter().map(line).collect() }
    }

    pub(super) fn missing(&mut self, at: usize, words: String) {
        self.lines[at].missing = Some(words);
    }

    pub(super) fn add(&mut self, at: usize, world: World, figures: Figures) {
        for (_, all) in self.lines[at].worlds.iter_mut().filter(|it| it.0 == world) {
            all.push(figures);
        }
    }

    pub(super) fn failed(&mut self, at: usize, world: World, error: &str) {
        self.lines[at].failed.push((world, error.replace(['|', '\n'], " ")));
    }

    pub(super) fn taken_over(&mut self, at: usize, span: Duration) {
        self.lines[at].crashes.push(span);
    }

    /// Guards per second of the crowd of four processes, for the plot.
    pub(super) fn crowds(&self) -> impl Iterator<Item = (&'static str, Option<f64>)> + '_ {
        self.lines.iter().map(|it| (it.name, it.figures(World::Crowd).map(|it| it.rate)))
    }

    pub(super) fn title(&self) -> &'static str {
        self.store.title()
    }

    fn table(&self) -> String {
        let mut out = format!(
            "## {}\n\n| who | free | 1 × 64 | 4 × 16 | 4 × 1 | requests per guard, 4 × 16 | crash |\n|---|---|---|---|---|---|---|\n",
            self.title()
        );
        for line in &self.lines {
            let _ = writeln!(out, "{}", line.row());
        }
        let _ = writeln!(out, "\nA request is what the server counts: {}.", self.store.requests());
        let behind = self.behind();
        if !behind.is_empty() {
            let _ = writeln!(out, "\nWhere ours is not the first:\n\n{}", behind.join("\n"));
        }
        out
    }

    /// The columns in which somebody else, measured and safe, is ahead of the best of ours.
    fn behind(&self) -> Vec<String> {
        let (ours, others): (Vec<&Line>, Vec<&Line>) = self.lines.iter().partition(|it| it.is_ours());
        let columns: [(&str, Figure); 5] = [
            ("free", |it| it.figures(World::Free).map(|it| it.rate)),
            ("1 × 64", |it| it.figures(World::Tasks).map(|it| it.hand_offs)),
            ("4 × 16", |it| it.figures(World::Crowd).map(|it| it.hand_offs)),
            ("4 × 1", |it| it.figures(World::Alone).map(|it| it.hand_offs)),
            ("crash", |it| it.crash().map(|it| 1.0 / it.as_secs_f64())),
        ];
        let best = |all: &[&Line], of: Figure| {
            let known = all.iter().filter_map(|it| of(it).map(|figure| (figure, it.name)));
            known.max_by(|a, b| a.0.total_cmp(&b.0))
        };
        let mut out = Vec::new();
        for (column, of) in columns {
            let (Some((mine, _)), Some((theirs, name))) = (best(&ours, of), best(&others, of)) else {
                continue;
            };
            // Less is what two runs of the same differ by.
            let factor = theirs / mine;
            if AHEAD < factor {
                out.push(format!("- {column}: {name}, by {factor:.2} ×: {}.", reason(self.store, column)));
            }
        }
        out
    }
}

impl Line {
    fn is_ours(&self) -> bool {
        self.name.contains("Lockkeeper")
    }

    fn figures(&self, world: World) -> Option<Figures> {
        let all = &self.worlds.iter().find(|it| it.0 == world)?.1;
        (!all.is_empty()).then(|| Figures::together(all))
    }

    fn crash(&self) -> Option<Duration> {
        let mut all = self.crashes.clone();
        (!all.is_empty()).then(|| median(&mut all))
    }

    fn row(&self) -> String {
        let name = self.name;
        if let Some(words) = &self.missing {
            return format!("| {name} | not measured: {} | | | | | |", words.replace(['|', '\n'], " "));
        }
        let cell = |world: World| match self.figures(world) {
            None => {
                let why = self.failed.iter().find(|it| it.0 == world);
                format!("failed: {}", why.map_or("nothing was measured", |it| it.1.as_str()))
            }
            Some(it) => told(world, &it),
        };
        let requests =
            self.figures(World::Crowd).map_or_else(String::new, |it| format!("{:.2}", it.requests));
        let crash = self.crash().map_or_else(|| "not taken over".to_owned(), |it| format!("{it:.1?}"));
        let cells: Vec<String> = World::ALL.into_iter().map(cell).collect();
        format!("| {name} | {} | {requests} | {crash} |", cells.join(" | "))
    }
}

fn told(world: World, it: &Figures) -> String {
    let mut out = match world {
        World::Free => format!("{:.0}/s · {:.0} µs", it.rate, it.cycle),
        World::Alone => {
            format!("{:.0}/s · {:.0} / {:.0} µs", it.hand_offs, it.hand_off.0, it.hand_off.1)
        }
        World::Tasks | World::Crowd => {
            format!("{:.0}/s · {:.0}/s · {:.2} · {:.0} ms", it.rate, it.hand_offs, it.jain, it.longest)
        }
    };
    if it.is_unsafe() {
        let _ = write!(out, " · **unsafe**: {} at once, {} updates lost", it.overlaps, it.lost);
    }
    if 0 < it.refused {
        let _ = write!(out, " · {} gave up", it.refused);
    }
    out
}

/// Everything that was measured.
pub(super) struct Page {
    /// How busy the machine was before.
    pub(super) load: String,
    pub(super) span: Duration,
    pub(super) turns: usize,
    pub(super) sheets: Vec<Sheet>,
    pub(super) commands: Vec<command::Row>,
}

impl Page {
    pub(super) fn write(&self, page: &Path, picture: &Path) -> Answer<()> {
        let name = picture.file_name().unwrap_or_default().to_string_lossy().into_owned();
        std::fs::write(picture, plot::draw(&self.sheets))?;
        Ok(std::fs::write(page, self.text(&name))?)
    }

    fn text(&self, picture: &str) -> String {
        let load = &self.load;
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let mut out = format!(
            "# Rivals\n\nWritten by `cargo xtask bench rivals`, never by hand. What people would take instead, beside ours: the same servers, on one\n\
             machine ({cores} cores, everything on loopback), in turns, {} × {} s after 1.5 s of warm-up; medians, the longest of all. {load}\n\
             Every program is in the repository and uses its library as the library's documentation shows it. Under the lock each guard reads, adds and writes a number in a file: two\n\
             holders at once would be seen, and make a lock **unsafe** in that cell.\n\n{LEGEND}\n\
             ![Guards per second of four processes with 16 tasks each]({picture})\n",
            self.turns,
            self.span.as_secs(),
        );
        for sheet in &self.sheets {
            let _ = write!(out, "\n{}", sheet.table());
        }
        if !self.commands.is_empty() {
            let _ = write!(out, "\n{}", command::table(&self.commands));
        }
        out
    }
}

const LEGEND: &str = "\
| column | what it says |
|---|---|
| free | one task of one process: guards per second · from one to the next, median |
| 1 × 64, 4 × 16 | processes × tasks on one key: guards per second · hand-offs per second (the next holder is another task) · Jain's index over the tasks (1 = even) · the longest that a task starved |
| 4 × 1 | four processes: hand-offs per second · from release to the grant of one that waited, median / 99th percentile |
| crash | after how long a waiting process had the lock of one that was killed; ttl 5 s where there is one (rslock: 10 s) |
";

/// How busy the machine was with other things.
pub(super) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    // The mean of the last five minutes: a build right before is part of the shorter one.
    let load: f64 = text.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0.0);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = load / f64::from(u32::try_from(cores).unwrap_or(1));
    if BUSY < share {
        format!(
            "**The machine was busy** before it began (load {load:.1} on {cores} cores): read this as a shape, not as figures."
        )
    } else {
        format!("The machine was quiet before (load {load:.1} on {cores} cores).")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rate: f64) -> Figures {
        Figures { rate, hand_offs: rate, ..Figures::default() }
    }

    #[test]
    fn whoever_is_ahead_is_named_with_a_reason_and_what_is_missing_says_so() {
        let mut sheet = Sheet::new(Store::Redis, vec!["**Lockkeeper**", "fast", "absent"]);
        sheet.add(0, World::Free, figures(100.0));
        sheet.add(1, World::Free, figures(150.0));
        sheet.add(0, World::Crowd, figures(9.0));
        sheet.add(1, World::Crowd, Figures { lost: 2, overlaps: 1, ..figures(3.0) });
        sheet.missing(2, "there is no Java here".to_owned());
        let table = sheet.table();
        assert!(table.contains("- free: fast, by 1.50 ×: two round trips"), "{table}");
        assert!(!table.contains("- 4 × 16"), "{table}");
        assert!(table.contains("| absent | not measured: there is no Java here |"), "{table}");
        assert!(table.contains("**unsafe**: 1 at once, 2 updates lost"), "{table}");
        assert!(table.contains("failed: nothing was measured"), "{table}");
    }
}
