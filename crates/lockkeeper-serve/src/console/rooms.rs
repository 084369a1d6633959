//! The page of what is more than a lock: who leads, permits in use, readers and writers.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State as Of;
use axum::response::Response;

use super::parts::{address_of, foreign, page, running, trouble};
use crate::state::State;
use crate::view::{Lock, millis};
use crate::watch::Role;

/// Rows of a table; the page of locks has the rest.
const ROWS_MAX: usize = 200;

pub(crate) async fn rooms(Of(state): Of<Arc<State>>) -> Response {
    let seen = state.watch.look().await;
    let roles = state.watch.roles(&state.locker, &seen).await;
    let live = trouble(&seen) + &leaders(&roles) + &counted(&seen.locks) + &shared(&seen.locks);
    page(&state, "Roles and shared locks", "/rooms", "", &live)
}

fn link(name: &str) -> String {
    format!("<a href=\"{}\">{}</a>", address_of(name), foreign(name))
}

/// A table in which every cell knows its title, for narrow screens.
pub(super) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = String::from("<table class=\"list\"><thead><tr>");
    for title in titles {
        let _ = write!(out, "<th scope=\"col\">{title}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (title, cell) in titles.iter().zip(row) {
            let _ = write!(out, "<td data-title=\"{title}\"><div>{cell}</div></td>");
        }
        out.push_str("</tr>");
    }
    out + "</tbody></table>"
}

fn leaders(roles: &[Role]) -> String {
    if roles.is_empty() {
        return "<h2>Leaders</h2><p class=\"empty\">Nobody leads.</p>".into();
    }
    let rows: Vec<_> = roles
        .iter()
        .map(|it| {
            vec![
                link(&it.name),
                foreign(&it.leader.value),
                foreign(&format!("{}:{}", it.leader.holder.host, it.leader.holder.pid)),
                it.leader.term.to_string(),
                running(millis(it.leader.age)),
                it.standing.to_string(),
            ]
        })
        .collect();
    let titles = ["Role", "Leader", "Where", "Term", "Leads for", "Standing"];
    "<h2>Leaders</h2>".to_owned() + &table(&titles, &rows)
}

/// Locks with permits.
fn counted(locks: &[Lock]) -> String {
    let permits = |it: &&Lock| {
        it.holders
            .iter()
            .map(|it| &it.who)
            .chain(it.waiters.iter().map(|it| &it.who))
            .any(|it| it.kind == "permits")
    };
    let rows: Vec<_> = locks
        .iter()
        .filter(permits)
        .take(ROWS_MAX)
        .map(|lock| {
            let used: u64 = lock.holders.iter().map(|it| u64::from(it.who.weight)).sum();
            // The smallest counts, where callers disagree.
            let all = lock.holders.iter().map(|it| it.who.capacity).min();
            let of = all.map_or_else(|| "?".to_owned(), |it| it.to_string());
            let meter = all.map(|all| format!(" <meter min=\"0\" max=\"{all}\" value=\"{used}\"></meter>"));
            vec![
                link(&lock.name),
                format!("{used} of {of}{}", meter.unwrap_or_default()),
                lock.holders.len().to_string(),
                lock.waiters.len().to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "<h2>Permits</h2><p class=\"empty\">No permits are given out or waited for.</p>".into();
    }
    "<h2>Permits</h2>".to_owned() + &table(&["Name", "In use", "Holders", "Waiting"], &rows)
}

/// Locks with readers or writers.
fn shared(locks: &[Lock]) -> String {
    let is = |it: &Lock, kind: &str| it.holders.iter().filter(|it| it.who.kind == kind).count();
    let waits = |it: &Lock, kind: &str| it.waiters.iter().filter(|it| it.who.kind == kind).count();
    let rows: Vec<_> = locks
        .iter()
        .filter(|it| ["reader", "writer"].iter().any(|kind| is(it, kind) + waits(it, kind) > 0))
        .take(ROWS_MAX)
        .map(|lock| {
            vec![
                link(&lock.name),
                is(lock, "reader").to_string(),
                is(lock, "writer").to_string(),
                waits(lock, "reader").to_string(),
                waits(lock, "writer").to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "<h2>Shared locks</h2><p class=\"empty\">No lock is shared.</p>".into();
    }
    let titles = ["Name", "Readers", "Writers", "Readers waiting", "Writers waiting"];
    "<h2>Shared locks</h2>".to_owned() + &table(&titles, &rows)
}
