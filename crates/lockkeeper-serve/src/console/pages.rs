//! The pages: overview, locks, one lock, doctor.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State as Of};
use axum::response::Response;
use lockkeeper_core::Key;
use lockkeeper_core::inspect::{Finding, Severity};

use super::doubts::how_many as how_many_in_doubt;
use super::figures::Figures;
use super::parts::{address_of, esc, foreign, page, running, span, trouble};
use crate::answer::Result;
use crate::ask::pairs;
use crate::locks::name_in;
use crate::state::State;
use crate::view::{Holder, Lock, Who, millis};
use crate::watch::{Diagnosis, who};

/// Rows on a page; the search finds the rest.
const ROWS_MAX: usize = 500;
/// Changes on the page of a lock.
const CHANGES_SHOWN: usize = 100;
/// Columns of the list: the title, how it is sorted by, if it is.
const COLUMNS: [(&str, Option<&str>); 7] = [
    ("Name", Some("name")),
    ("Holder", None),
    ("Kind", None),
    ("Held for", Some("held")),
    ("Fence", None),
    ("Valid for", Some("valid")),
    ("Waiting", Some("waiting")),
];

/// Which locks, in which order.
#[derive(Debug, Default)]
pub(super) struct Choice {
    search: String,
    sort: String,
    waited: bool,
    /// One lock alone.
    name: Option<String>,
}

impl Choice {
    pub(super) fn read(query: &str) -> Result<Self> {
        let mut choice = Choice::default();
        for (name, value) in pairs(query)? {
            match name.as_str() {
                "q" => choice.search = value,
                "sort" => choice.sort = value,
                "waited" => choice.waited = true,
                "name" => choice.name = Some(value),
                _ => {}
            }
        }
        Ok(choice)
    }

    /// Those that are meant, in order.
    pub(super) fn all<'a>(&self, locks: &'a [Lock]) -> Vec<&'a Lock> {
        let meant = |it: &&Lock| match &self.name {
            Some(name) => it.name == *name,
            None => it.name.contains(&self.search) && (!self.waited || 0 < it.waiting()),
        };
        let mut all: Vec<&Lock> = locks.iter().filter(meant).collect();
        let held = |it: &Lock| it.holders.iter().filter_map(|it| it.held_for_ms).max().unwrap_or(0);
        let valid = |it: &Lock| it.holders.iter().map(|it| it.who.valid_for_ms).min().unwrap_or(u64::MAX);
        match self.sort.as_str() {
            "held" => all.sort_by_key(|it| std::cmp::Reverse(held(it))),
            "waiting" => all.sort_by_key(|it| std::cmp::Reverse(it.waiting())),
            "valid" => all.sort_by_key(|it| valid(it)),
            _ => {}
        }
        all
    }

    /// As many of them as a page shows.
    pub(super) fn of<'a>(&self, locks: &'a [Lock]) -> Vec<&'a Lock> {
        let mut all = self.all(locks);
        all.truncate(ROWS_MAX);
        all
    }

    /// The same choice in another order.
    fn sorted_by(&self, sort: &str) -> String {
        let mut address = format!("/locks?sort={sort}");
        if !self.search.is_empty() {
            let search =
                percent_encoding::utf8_percent_encode(&self.search, percent_encoding::NON_ALPHANUMERIC);
            let _ = write!(address, "&q={search}");
        }
        if self.waited {
            address.push_str("&waited=on");
        }
        address
    }
}

/// How somebody holds it, or wants to.
fn kind(it: &Who) -> String {
    match it.kind {
        "permits" => format!("{} of {} permits", it.weight, it.capacity),
        kind => kind.to_owned(),
    }
}

/// A validity, marked where it is short, also when it becomes so.
fn validity(it: &Who) -> String {
    let (left, short) = (it.valid_for_ms, it.short_ms());
    let mark = if left < short { " class=\"short\"" } else { "" };
    format!("<span data-left=\"{left}\" data-short=\"{short}\"{mark}>{}</span>", span(left))
}

pub(crate) async fn overview(Of(state): Of<Arc<State>>) -> Response {
    let (seen, said) = (state.watch.look().await, state.watch.last_diagnosis().await);
    let all = Choice::default().all(&seen.locks);
    let Figures { held, waiting, oldest, shortest, longest, .. } = Figures::of(&all);
    let link = |name: &str| format!("<a href=\"{}\">{}</a>", address_of(name), foreign(name));
    let none = || "<span class=\"quiet\">none</span>".to_owned();
    let mut cards = vec![
        (
            "Store",
            if seen.trouble.is_some() {
                "<b class=\"bad\">cannot be seen</b>".into()
            } else {
                "<b class=\"good\">reachable</b>".to_owned()
            },
            foreign(&state.store),
        ),
        ("Held", format!("<b>{held}</b>"), "<a href=\"/locks\">all locks</a>".into()),
        (
            "Waiting",
            format!("<b>{waiting}</b>"),
            "<a href=\"/locks?sort=waiting&amp;waited=on\">who is waited for</a>".into(),
        ),
        (
            "Oldest hold",
            oldest
                .map_or_else(none, |it| format!("<b>{}</b>", running(it.by.held_for_ms.unwrap_or_default()))),
            oldest.map(|it| link(it.name)).unwrap_or_default(),
        ),
        (
            "Longest queue",
            longest.map_or_else(none, |it| format!("<b>{}</b>", it.1)),
            longest.map(|it| link(it.0)).unwrap_or_default(),
        ),
        (
            "Shortest validity",
            shortest.map_or_else(none, |it| format!("<b>{}</b>", validity(&it.by.who))),
            shortest.map(|it| link(it.name)).unwrap_or_default(),
        ),
        ("Doctor", worst(said.as_deref()), "<a href=\"/doctor\">ask the doctor</a>".into()),
    ];
    cards.push(losses(&state));
    if let Some(doubts) = &state.doubts {
        let told = how_many_in_doubt(doubts.look().await.as_ref());
        cards.push(("In doubt", told, "<a href=\"/two-phase\">two-phase commit</a>".into()));
    }
    let mut live = trouble(&seen) + "<div class=\"cards\">";
    for (title, value, more) in cards {
        let _ =
            write!(live, "<section><h2>{title}</h2><p>{value}</p><p class=\"quiet\">{more}</p></section>");
    }
    live.push_str("</div>");
    page(&state, "Overview", "/", "", &live)
}

/// What was lost since the server began: by its own clients, as they were told, and in the store, as far as it was seen.
fn losses(state: &State) -> (&'static str, String, String) {
    let number = |it: u64| match it {
        0 => "<b class=\"good\">0</b>".to_owned(),
        some => format!("<b class=\"bad\">{some}</b>"),
    };
    let ran_out = state.watch.ran_out();
    match &state.hot {
        None => ("Losses", number(ran_out), "ran out unrenewed in the store, as seen from here".into()),
        Some(hot) => {
            let more = format!("by clients of this server; {ran_out} ran out unrenewed in the store");
            ("Losses", number(hot.lost()), more)
        }
    }
}

/// The doctor's worst finding, in a word. It is not asked for this: it tries a lock, which is a write.
fn worst(said: Option<&Diagnosis>) -> String {
    let Some(said) = said else { return "<span class=\"quiet\">not asked yet</span>".into() };
    let count = |is: &dyn Fn(Severity) -> bool| {
        said.as_ref().map_or(0, |it| it.iter().filter(|it| is(it.severity)).count())
    };
    let dangers = count(&|it| it > Severity::Warning);
    let warnings = count(&|it| it == Severity::Warning);
    match (said, dangers, warnings) {
        (Err(_), ..) => "<b class=\"bad\">cannot be asked</b>".into(),
        (_, 0, 0) => "<b class=\"good\">all is well</b>".into(),
        (_, 0, 1) => "<b>1 warning</b>".into(),
        (_, 0, _) => format!("<b>{warnings} warnings</b>"),
        (_, 1, _) => "<b class=\"bad\">1 danger</b>".into(),
        _ => format!("<b class=\"bad\">{dangers} dangers</b>"),
    }
}

pub(crate) async fn locks(Of(state): Of<Arc<State>>, RawQuery(query): RawQuery) -> Result {
    let choice = Choice::read(query.as_deref().unwrap_or_default())?;
    let seen = state.watch.look().await;
    let (all, shown) = (choice.all(&seen.locks), choice.of(&seen.locks));
    let still = format!(
        "<form class=\"search\" method=\"get\" action=\"/locks\" role=\"search\"><label for=\"q\">Name contains</label><input \
         id=\"q\" name=\"q\" type=\"search\" value=\"{}\"><input type=\"hidden\" name=\"sort\" value=\"{}\"><label \
         class=\"check\"><input type=\"checkbox\" name=\"waited\"{}> only waited for</label><button>Search</button></form>",
        esc(&choice.search),
        esc(&choice.sort),
        if choice.waited { " checked" } else { "" }
    );
    let mut live = trouble(&seen);
    let more = match all.len() - shown.len() {
        0 => String::new(),
        more => format!("; {more} more are not shown: search for them"),
    };
    let _ = write!(live, "<p class=\"quiet\" id=\"count\">{}{more}</p>", how_many(all.len()));
    if shown.is_empty() {
        live.push_str("<p class=\"empty\">No lock is held or waited for.</p>");
    } else {
        live.push_str(&table(&choice, &shown));
    }
    Ok(page(&state, "Locks", "/locks", &still, &live))
}

fn how_many(count: usize) -> String {
    if count == 1 { "1 lock".into() } else { format!("{count} locks") }
}

fn table(choice: &Choice, locks: &[&Lock]) -> String {
    let mut out = String::from("<table class=\"list\"><thead><tr>");
    for (title, sort) in COLUMNS {
        let chosen = sort.is_some_and(|it| it == choice.sort || (it == "name" && choice.sort.is_empty()));
        let mark = match (chosen, sort) {
            (false, _) => "",
            (true, Some("name" | "valid")) => " aria-sort=\"ascending\"",
            _ => " aria-sort=\"descending\"",
        };
        let _ = match sort {
            Some(sort) => write!(
                out,
                "<th scope=\"col\"{mark}><a href=\"{}\">{title}</a></th>",
                esc(&choice.sorted_by(sort))
            ),
            None => write!(out, "<th scope=\"col\">{title}</th>"),
        };
    }
    out.push_str("</tr></thead><tbody>");
    for lock in locks {
        if lock.holders.is_empty() {
            row(&mut out, lock, None);
        }
        for holder in &lock.holders {
            row(&mut out, lock, Some(holder));
        }
    }
    out.push_str("</tbody></table>");
    out
}

fn row(out: &mut String, lock: &Lock, holder: Option<&Holder>) {
    let of = |show: &dyn Fn(&Holder) -> String| {
        holder.map_or_else(|| "<span class=\"quiet\">–</span>".to_owned(), show)
    };
    let note = |it: &Holder| {
        let note = it.who.note.as_deref().map(|it| format!(" <span class=\"note\">{}</span>", foreign(it)));
        foreign(&who(&it.who)) + &note.unwrap_or_default()
    };
    let mut cells = [
        format!("<a href=\"{}\">{}</a>", address_of(&lock.name), foreign(&lock.name)),
        of(&note),
        of(&|it| kind(&it.who)),
        of(&|it| it.held_for_ms.map_or_else(|| "?".into(), running)),
        of(&|it| it.fence.clone().unwrap_or_else(|| "?".into())),
        of(&|it| validity(&it.who)),
        lock.waiting().to_string(),
    ];
    if holder.is_none() && !lock.foreign.is_empty() {
        cells[1] = "<b class=\"bad\">something that is not Lockkeeper's</b>".into();
    }
    out.push_str("<tr>");
    for (cell, (title, _)) in cells.iter().zip(COLUMNS) {
        let _ = write!(out, "<td data-title=\"{title}\"><div>{cell}</div></td>");
    }
    out.push_str("</tr>");
}

pub(crate) async fn lock(
    Of(state): Of<Arc<State>>,
    path: std::result::Result<Path<String>, PathRejection>,
) -> Result {
    let key = Key::new(&name_in(path)?)?;
    let name = key.as_str();
    let seen = state.watch.look().await;
    let free = Lock::free(name);
    let lock = seen.locks.iter().find(|it| it.name == name).unwrap_or(&free);
    let mut live = trouble(&seen);
    live.push_str(&holders(&state, lock));
    for it in &lock.foreign {
        let _ = write!(live, "<p class=\"banner\">{}</p>", foreign(it));
    }
    if let Some(leader) = state.watch.leader(&state.locker, &seen, name).await {
        let age = running(millis(leader.age));
        let _ =
            write!(live, "<h2>Leads</h2><p>{} since {age}, term {}</p>", foreign(&leader.value), leader.term);
    }
    live.push_str(&line(lock));
    live.push_str(&history(&state, name));
    let still = format!(
        "<p class=\"name\">{}</p><p class=\"quiet\">The same on the command line: <code>lockkeeper show -- {}</code></p>",
        foreign(name),
        esc(&quoted(name))
    );
    Ok(page(&state, "Lock", "", &still, &live))
}

/// A name as a shell reads it.
fn quoted(name: &str) -> String {
    format!("'{}'", name.replace('\'', "'\\''"))
}

fn holders(state: &State, lock: &Lock) -> String {
    if lock.holders.is_empty() {
        let waited = if lock.waiting() == 0 { "free" } else { "waited for, held by nobody just now" };
        return format!("<p class=\"state\">This lock is <b>{waited}</b>.</p>");
    }
    let mut out = String::from("<h2>Holders</h2><div class=\"cards\">");
    for it in &lock.holders {
        let fence = it.fence.as_deref().unwrap_or("?");
        let mut rows = vec![
            ("Kind", kind(&it.who)),
            ("Held for", it.held_for_ms.map_or_else(|| "?".into(), running)),
            ("Fence", esc(fence)),
            ("Valid for", validity(&it.who)),
        ];
        if let Some(note) = &it.who.note {
            rows.push(("Note", foreign(note)));
        }
        if let Some(trace) = &it.who.trace {
            rows.push(("Trace", format!("<code>{trace}</code>")));
        }
        let _ = write!(out, "<section class=\"holder\"><h3>{}</h3><dl>", foreign(&who(&it.who)));
        for (title, value) in rows {
            let _ = write!(out, "<dt>{title}</dt><dd>{value}</dd>");
        }
        let only = it.fence.as_ref().map(|it| format!(" --fence {it}")).unwrap_or_default();
        let by_hand = format!("lockkeeper break{only} -- {}", quoted(&lock.name));
        let _ = write!(out, "</dl><p class=\"quiet\">By hand: <code>{}</code></p>", esc(&by_hand));
        if state.allow_break && it.fence.is_some() {
            let _ = write!(
                out,
                "<button class=\"break\" data-name=\"{}\" data-fence=\"{}\" data-who=\"{}\" data-valid=\"{}\">Break…</button>",
                esc(&lock.name),
                esc(fence),
                esc(&who(&it.who)),
                span(it.who.valid_for_ms)
            );
        }
        out.push_str("</section>");
    }
    out + "</div>"
}

fn line(lock: &Lock) -> String {
    let ours = match lock.here {
        0 => String::new(),
        1 => "<p class=\"quiet\">1 client of this server waits in its own line, of which the store does not know.</p>".into(),
        some => format!(
            "<p class=\"quiet\">{some} clients of this server wait in its own line, of which the store does not know.</p>"
        ),
    };
    match lock.waiters.len() {
        0 if ours.is_empty() => "<h2>Queue</h2><p class=\"empty\">Nobody waits.</p>".into(),
        0 => format!("<h2>Queue</h2>{ours}"),
        some => {
            let first = format!("<h2>Queue</h2><p class=\"quiet\">{some} waiting, first in line first</p>");
            first + &in_line(lock) + &ours
        }
    }
}

fn in_line(lock: &Lock) -> String {
    let mut out = String::from("<ol class=\"line\">");
    for it in lock.waiters.iter().take(ROWS_MAX) {
        let note = it.who.note.as_deref().map(|it| format!(" <span class=\"note\">{}</span>", foreign(it)));
        let waited = it.waited_for_ms.map_or_else(|| "?".into(), running);
        let _ = write!(
            out,
            "<li>{}{} <span class=\"quiet\">{}, waiting for {waited}, place valid for {}</span></li>",
            foreign(&who(&it.who)),
            note.unwrap_or_default(),
            kind(&it.who),
            validity(&it.who)
        );
    }
    out + "</ol>"
}

fn history(state: &State, name: &str) -> String {
    let changes = state.watch.history(name, CHANGES_SHOWN);
    let mut out = String::from("<h2>Changes</h2>");
    if changes.is_empty() {
        return out + "<p class=\"empty\">None was seen while somebody watched.</p>";
    }
    let now = state.clock.now();
    out.push_str("<ul class=\"changes\">");
    for it in changes {
        let ago = running(millis(now - it.at));
        let _ = write!(out, "<li><span class=\"quiet\">{ago} ago</span> {}</li>", foreign(&it.what));
    }
    out + "</ul>"
}

pub(crate) async fn doctor(Of(state): Of<Arc<State>>) -> Response {
    let said = state.watch.doctor().await;
    let still = "<p class=\"quiet\">As <code>lockkeeper doctor</code> says. It tries a lock of its own, at most every half \
                 minute, so it is asked only when this page is opened.</p>";
    let live = match said.as_ref() {
        Err(trouble) => format!("<p class=\"banner\" role=\"alert\">{}</p>", foreign(trouble)),
        Ok(findings) if findings.is_empty() => "<p class=\"empty\">Nothing endangers locks here.</p>".into(),
        Ok(findings) => findings.iter().map(finding).collect(),
    };
    page(&state, "Doctor", "/doctor", still, &live)
}

fn finding(it: &Finding) -> String {
    let word = match it.severity {
        Severity::Fine => "fine",
        Severity::Warning => "warning",
        _ => "danger",
    };
    let mut out =
        format!("<section class=\"finding {word}\"><h2><span>{word}</span> {}</h2>", foreign(&it.what));
    // What is as it should be needs no more words.
    let more = [("So", &it.consequence), ("Do", &it.remedy)];
    for (title, said) in more.into_iter().filter(|it| word != "fine" && !it.1.is_empty()) {
        let _ = write!(out, "<p><b>{title}:</b> {}</p>", foreign(said));
    }
    out + "</section>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Waiter;

    fn who(valid_for_ms: u64) -> Who {
        let (host, owner, note, trace) = ("h".into(), None, None, None);
        let longest_ms = valid_for_ms;
        Who {
            host,
            pid: 1,
            owner,
            note,
            valid_for_ms,
            kind: "lock",
            weight: 1,
            capacity: 1,
            trace,
            longest_ms,
        }
    }

    fn lock(name: &str, held_for_ms: u64, valid_for_ms: u64, waiters: usize) -> Lock {
        let holder = Holder { who: who(valid_for_ms), held_for_ms: Some(held_for_ms), fence: None };
        let waiter = |position| Waiter { position, who: who(1000), waited_for_ms: None };
        Lock { holders: vec![holder], waiters: (1..=waiters).map(waiter).collect(), ..Lock::free(name) }
    }

    #[test]
    fn locks_stand_in_the_order_that_was_asked_for() {
        let locks = [lock("a", 20, 300, 0), lock("b", 30, 100, 2), lock("c", 10, 200, 1), Lock::free("d")];
        for (query, order) in [
            ("", "a b c d"),
            ("sort=name", "a b c d"),
            ("sort=held", "b a c d"),
            ("sort=valid", "b c a d"),
            ("sort=waiting", "b c a d"),
            ("sort=waiting&waited=on", "b c"),
            ("sort=held&q=c", "c"),
            ("name=a", "a"),
        ] {
            let all = Choice::read(query).unwrap().all(&locks).into_iter().map(|it| it.name.clone());
            assert_eq!(all.collect::<Vec<_>>().join(" "), order, "{query}");
        }
    }
}
