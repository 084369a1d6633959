//! The page of all rivals: one section per store with its table and its plot, who is ahead where, and why not if it is not us.
//! A store that is run renews its own section.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::fight::World;
use super::figures::Figures;
use super::list::{Column, STORES, reason, without};
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
    /// Why nobody took over.
    stayed: Option<String>,
}

impl Sheet {
    pub(super) fn new(store: Store, names: Vec<&'static str>) -> Self {
        let worlds = || World::ALL.map(|it| (it, Vec::new())).to_vec();
        let line = |name| Line {
            name,
            missing: None,
            worlds: worlds(),
            failed: Vec::new(),
            crashes: Vec::new(),
            stayed: None,
        };
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
        self.lines[at].failed.push((world, in_a_cell(error)));
    }

    /// Whether it failed in this world before: then it is not tried again, because a hang takes long.
    pub(super) fn has_failed(&self, at: usize, world: World) -> bool {
        self.lines[at].failed.iter().any(|it| it.0 == world)
    }

    pub(super) fn not_taken_over(&mut self, at: usize, error: &str) {
        self.lines[at].stayed = Some(in_a_cell(error));
    }

    pub(super) fn taken_over(&mut self, at: usize, span: Duration) {
        self.lines[at].crashes.push(span);
    }

    /// What the plot shows: guards per second of the crowd of four processes, and hand-offs per second.
    pub(super) fn bars(&self) -> impl Iterator<Item = (&'static str, Option<f64>, Option<f64>)> + '_ {
        self.lines.iter().map(|it| {
            let crowd = it.figures(World::Crowd);
            (it.name, crowd.map(|it| it.rate), crowd.map(|it| it.hand_offs))
        })
    }

    pub(super) fn title(&self) -> &'static str {
        self.store.title()
    }

    /// Where its plot is, beside the page.
    fn plot(&self) -> String {
        format!("rivals-{}.svg", self.store.name())
    }

    /// Its section of the page, without the marks of its heading.
    fn section(&self, how: &str) -> String {
        let mut out = format!(
            "{}\n\n{how}\n\n| who | free | 1 × 64 | 4 × 16 | 4 × 1 | requests per guard, 4 × 16 | crash |\n|---|---|---|---|---|---|---|\n",
            self.title()
        );
        for line in &self.lines {
            let _ = writeln!(out, "{}", line.row());
        }
        let _ = writeln!(out, "\nA request is what the server counts: {}.", self.store.requests());
        let behind = self.behind();
        if !behind.is_empty() {
            let _ = writeln!(out, "\nWhere ours is not the first:\n\n{}", behind.join("\n"));
        } else if self.is_compared() {
            out.push_str("\nNobody else is ahead in any column.\n");
        }
        let _ = write!(out, "\n![{} in plots]({})", self.title(), self.plot());
        out
    }

    fn is_compared(&self) -> bool {
        let measured = |it: &&Line| World::ALL.iter().any(|world| it.figures(*world).is_some());
        let (ours, others): (Vec<&Line>, Vec<&Line>) =
            self.lines.iter().filter(measured).partition(|it| it.is_ours());
        !ours.is_empty() && !others.is_empty()
    }

    /// Where somebody else, measured and safe, is ahead of one of ours: everybody who is, and each of ours by itself, so that
    /// a good row hides no bad one.
    fn behind(&self) -> Vec<String> {
        let (ours, others): (Vec<&Line>, Vec<&Line>) = self.lines.iter().partition(|it| it.is_ours());
        let mut out = Vec::new();
        for mine in &ours {
            let whose = if 1 < ours.len() { format!("{}, ", mine.name) } else { String::new() };
            for (words, column, of) in COLUMNS {
                let Some(figure) = of(mine).filter(|it| it.is_finite()) else { continue };
                let known = others.iter().filter_map(|it| Some((of(it)? / figure, it.name)));
                // Less is what two runs of the same differ by.
                let mut ahead: Vec<_> = known.filter(|it| it.0.is_finite() && AHEAD < it.0).collect();
                ahead.sort_by(|one, two| two.0.total_cmp(&one.0));
                for (factor, name) in ahead {
                    let why = without(name).map_or_else(String::new, |it| format!("{it}; "));
                    let why = why + reason(self.store, column);
                    out.push(format!("- {whose}{words}: {name}, by {factor:.2} ×: {why}."));
                }
            }
        }
        out
    }
}

/// What is compared: more is better.
const COLUMNS: [(&str, Column, Figure); 15] = [
    ("free", Column::Free, |it| it.safe(World::Free).map(|it| it.rate)),
    ("1 × 64, guards", Column::Rate, |it| it.safe(World::Tasks).map(|it| it.rate)),
    ("1 × 64, hand-offs", Column::Rate, |it| it.safe(World::Tasks).map(|it| it.hand_offs)),
    ("1 × 64, evenness", Column::Jain, |it| it.safe(World::Tasks).map(|it| it.jain)),
    ("1 × 64, longest", Column::Longest, |it| it.safe(World::Tasks).map(|it| 1.0 / it.longest)),
    ("4 × 16, guards", Column::Rate, |it| it.safe(World::Crowd).map(|it| it.rate)),
    ("4 × 16, hand-offs", Column::Rate, |it| it.safe(World::Crowd).map(|it| it.hand_offs)),
    ("4 × 16, evenness", Column::Jain, |it| it.safe(World::Crowd).map(|it| it.jain)),
    ("4 × 16, longest", Column::Longest, |it| it.safe(World::Crowd).map(|it| 1.0 / it.longest)),
    ("requests per guard", Column::Requests, |it| it.safe(World::Crowd).map(|it| 1.0 / it.requests)),
    ("4 × 1, hand-offs", Column::Rate, |it| it.safe(World::Alone).map(|it| it.hand_offs)),
    ("4 × 1, median", Column::Latency, |it| it.safe(World::Alone).map(|it| 1.0 / it.hand_off.0)),
    ("4 × 1, 99th percentile", Column::Latency, |it| it.safe(World::Alone).map(|it| 1.0 / it.hand_off.1)),
    ("4 × 1, longest", Column::Longest, |it| it.safe(World::Alone).map(|it| 1.0 / it.longest)),
    ("crash", Column::Crash, |it| it.crash().map(|it| 1.0 / it.as_secs_f64())),
];

impl Line {
    fn is_ours(&self) -> bool {
        self.name.contains("Lockkeeper")
    }

    fn figures(&self, world: World) -> Option<Figures> {
        let all = &self.worlds.iter().find(|it| it.0 == world)?.1;
        (!all.is_empty()).then(|| Figures::together(all))
    }

    /// A lock that was none is ahead of nobody.
    fn safe(&self, world: World) -> Option<Figures> {
        self.figures(world).filter(|it| !it.is_unsafe())
    }

    fn crash(&self) -> Option<Duration> {
        let mut all = self.crashes.clone();
        (!all.is_empty()).then(|| median(&mut all))
    }

    fn row(&self) -> String {
        let name = self.name;
        if let Some(words) = &self.missing {
            return format!("| {name} | not measured: {} | | | | | |", in_a_cell(words));
        }
        let cell = |world: World| match self.figures(world) {
            None => {
                let why = self.failed.iter().find(|it| it.0 == world);
                format!("failed: {}", why.map_or("nothing was measured", |it| it.1.as_str()))
            }
            Some(it) => told(world, &it),
        };
        let requests = self
            .figures(World::Crowd)
            .map_or_else(|| "as 4 × 16".to_owned(), |it| format!("{:.2}", it.requests));
        let stayed = || format!("not taken over: {}", self.stayed.as_deref().unwrap_or("not tried"));
        let crash = self.crash().map_or_else(stayed, |it| format!("{it:.1?}"));
        let cells: Vec<String> = World::ALL.into_iter().map(cell).collect();
        format!("| {name} | {} | {requests} | {crash} |", cells.join(" | "))
    }
}

/// What somebody reached in a world, as a cell.
pub(super) fn told(world: World, it: &Figures) -> String {
    let mut out = match world {
        World::Free => format!("{:.0}/s · {:.0} µs", it.rate, it.cycle),
        World::Alone => {
            format!(
                "{:.0}/s · {:.0} / {:.0} µs · {:.0} ms",
                it.hand_offs, it.hand_off.0, it.hand_off.1, it.longest
            )
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

fn in_a_cell(words: &str) -> String {
    words.trim().replace(['|', '\n'], " ")
}

/// How the figures of a run came to be.
pub(super) struct Run {
    /// How busy the machine was before.
    pub(super) load: String,
    pub(super) span: Duration,
    pub(super) turns: usize,
}

/// What a run has to say of one store, or of the command.
pub(super) enum Part {
    Sheet(Sheet),
    Commands(Vec<command::Row>),
    /// It could not be run, and why.
    Failed {
        title: &'static str,
        why: String,
    },
}

impl Run {
    /// Renew what this part is about. The rest of the page stays.
    pub(super) fn write(&self, part: &Part, page: &Path) -> Answer<()> {
        if let Part::Sheet(sheet) = part {
            std::fs::write(page.with_file_name(sheet.plot()), plot::draw(sheet))?;
        }
        let old = std::fs::read_to_string(page).unwrap_or_default();
        Ok(std::fs::write(page, renewed(&old, &self.section(part), matches!(part, Part::Failed { .. })))?)
    }

    fn section(&self, part: &Part) -> String {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let how = format!(
            "Measured in {} turns of {} s each on {cores} cores. {}",
            self.turns,
            self.span.as_secs(),
            self.load
        );
        match part {
            Part::Sheet(sheet) => sheet.section(&how),
            Part::Commands(rows) => command::section(rows, &how),
            Part::Failed { title, why } => format!("{title}\n\nIt could not be run: {}.", in_a_cell(why)),
        }
    }
}

const HEADING: &str = "\n## ";

/// The page with this section in its place. One that failed takes no figures away.
fn renewed(old: &str, section: &str, failed: bool) -> String {
    let title = |section: &str| section.lines().next().unwrap_or_default().to_owned();
    let order: Vec<&str> = STORES.iter().map(|it| it.title()).chain([command::TITLE]).collect();
    let mut all: Vec<Option<String>> = vec![None; order.len()];
    let place = |section: &str| order.iter().position(|it| *it == title(section));
    for it in old.split(HEADING).skip(1) {
        if let Some(at) = place(it).filter(|_| !it.contains(NOT_RUN)) {
            all[at] = Some(it.trim_end().to_owned());
        }
    }
    if let Some(at) = place(section)
        && (!failed || all[at].is_none())
    {
        all[at] = Some(section.trim_end().to_owned());
    }
    let mut out = format!("{INTRODUCTION}\n{LEGEND}");
    for (title, section) in order.iter().zip(all) {
        let _ = writeln!(out, "{HEADING}{}", section.unwrap_or_else(|| format!("{title}\n\n{NOT_RUN}")));
    }
    out
}

const NOT_RUN: &str = "It was not run yet.";

const INTRODUCTION: &str = "\
# Rivals

Written by `cargo xtask bench rivals`, never by hand. What people would take instead, beside ours: the same servers, on one
machine (everything on loopback), in turns, after a warm-up (half a second; 1.5 s where a compiler is at work meanwhile: Java, Node, Python); medians, the longest of all. A store that is run alone renews
its own section, so sections may come from different runs. Every program is in the repository and uses its library as the library's
documentation shows it. Under the lock each guard reads, adds and writes a number in a file: two holders at once would be seen, and make
a lock **unsafe** in that cell; it is ahead of nobody there. Whoever differs from ours by a tenth or less counts as equal.
[Why it is done so](decisions/0055-evidence-beside-and-below.md).
";

const LEGEND: &str = "\
| column | what it says |
|---|---|
| free | one task of one process: guards per second · from one to the next, median |
| 1 × 64, 4 × 16 | processes × tasks on one key: guards per second · hand-offs per second (the next holder is another task) · Jain's index over the tasks (1 = even) · the longest that a task starved |
| 4 × 1 | four processes: hand-offs per second · from release to the grant of one that waited, median / 99th percentile · the longest that one starved |
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
        let table = sheet.section("How.");
        assert!(table.contains("- free: fast, by 1.50 ×: two round trips"), "{table}");
        assert!(!table.contains("- 4 × 16") && !table.contains("Nobody else"), "{table}");
        assert!(table.contains("not taken over: not tried"), "{table}");
        sheet.not_taken_over(0, "it did not\nanswer");
        assert!(sheet.section("How.").contains("not taken over: it did not answer"));
        assert!(table.ends_with("![Redis in plots](rivals-redis.svg)"), "{table}");
        assert!(table.contains("| absent | not measured: there is no Java here |"), "{table}");
        assert!(table.contains("**unsafe**: 1 at once, 2 updates lost"), "{table}");
        assert!(table.contains("failed: nothing was measured"), "{table}");
    }

    #[test]
    fn everybody_who_is_ahead_is_named_beside_each_of_ours() {
        let mut sheet = Sheet::new(
            Store::Postgres,
            vec!["**Lockkeeper**", "**Lockkeeper**, session locks", "sqlx 0.9", "other"],
        );
        for (at, rate) in [(0, 10.0), (1, 90.0), (2, 100.0), (3, 20.0)] {
            sheet.add(at, World::Free, figures(rate));
        }
        let said = sheet.behind();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(
            said[0].starts_with("- **Lockkeeper**, free: sqlx 0.9, by 10.00 ×: it has no lease"),
            "{said:?}"
        );
        assert!(said[1].starts_with("- **Lockkeeper**, free: other, by 2.00 ×: a durable lock"), "{said:?}");
        assert!(
            said[2].starts_with("- **Lockkeeper**, session locks, free: sqlx 0.9, by 1.11 ×"),
            "{said:?}"
        );
    }

    #[test]
    fn every_column_is_compared_and_an_unsafe_lock_is_ahead_of_nobody() {
        let good = Figures {
            rate: 9.0,
            hand_offs: 9.0,
            hand_off: (1.0, 1.0),
            jain: 0.9,
            longest: 1.0,
            requests: 1.0,
            ..Figures::default()
        };
        let bad = Figures {
            rate: 1.0,
            hand_offs: 1.0,
            hand_off: (9.0, 9.0),
            jain: 0.1,
            longest: 9.0,
            requests: 9.0,
            ..Figures::default()
        };
        for store in STORES {
            let sheet = |mine: Figures, theirs: Figures, (me, they): (u64, u64)| {
                let mut sheet = Sheet::new(store, vec!["**Lockkeeper**", "other"]);
                for world in World::ALL {
                    sheet.add(0, world, mine);
                    sheet.add(1, world, theirs);
                }
                sheet.taken_over(0, Duration::from_secs(me));
                sheet.taken_over(1, Duration::from_secs(they));
                sheet
            };
            assert_eq!(sheet(bad, good, (5, 1)).behind().len(), COLUMNS.len(), "{}", store.name());
            let ahead = sheet(good, bad, (1, 5));
            assert!(ahead.behind().is_empty() && ahead.section("").contains("Nobody else is ahead"));
            let theirs = Figures { lost: 1, ..good };
            assert_eq!(sheet(bad, theirs, (1, 5)).behind(), [""; 0], "unsafe");
        }
    }

    #[test]
    fn a_store_that_is_run_alone_keeps_the_other_sections_and_one_that_failed_takes_none_away() {
        let run = Run { load: "Quiet.".to_owned(), span: Duration::from_secs(2), turns: 2 };
        let sheet = |store, rate| {
            let mut sheet = Sheet::new(store, vec!["**Lockkeeper**"]);
            sheet.add(0, World::Free, figures(rate));
            run.section(&Part::Sheet(sheet))
        };
        let page = renewed("", &sheet(Store::Etcd, 71.0), false);
        assert!(page.contains("71/s") && page.matches(NOT_RUN).count() == STORES.len(), "{page}");
        let page = renewed(&page, &sheet(Store::Redis, 72.0), false);
        assert!(page.find("## Redis").unwrap() < page.find("## etcd").unwrap(), "{page}");
        assert!(page.contains("71/s") && page.contains("72/s"), "{page}");
        let page = renewed(&page, &sheet(Store::Redis, 73.0), false);
        assert!(!page.contains("72/s") && page.contains("73/s") && page.contains("71/s"), "{page}");
        let failed = |title| run.section(&Part::Failed { title, why: "no\nserver".to_owned() });
        assert_eq!(renewed(&page, &failed("Redis"), true), page);
        let page = renewed(&page, &failed("MySQL"), true);
        assert!(page.contains("## MySQL\n\nIt could not be run: no server."), "{page}");
        let page = renewed(&page, &sheet(Store::Mysql, 74.0), false);
        assert!(page.contains("74/s") && !page.contains("no server"), "{page}");
    }
}
