//! What `lockkeeper 2pc` prints.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::twophase::{
    Fate, Finding, InDoubt, Orphan, Ruling, Severity, Survey, TransactionId, Verdict,
};
use serde::Serialize;

use super::args::Place;
use crate::exit::{self, Failure, Result};
use crate::text;
use crate::{output, table};

#[derive(Serialize)]
pub(super) struct Everything {
    transactions: Vec<Transaction>,
    damages: Vec<Damage>,
    unreachable: Vec<Unreachable>,
    findings: Vec<Found>,
}

/// What the doctor says of a participant.
#[derive(Serialize)]
struct Found {
    participant: String,
    severity: &'static str,
    what: String,
    consequence: String,
    remedy: String,
}

#[derive(Serialize)]
pub(super) struct One {
    id: String,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_doubt: Option<Transaction>,
    damages: Vec<Damage>,
}

#[derive(Serialize)]
struct Transaction {
    id: String,
    decided: Option<&'static str>,
    note: String,
    seat: u32,
    seat_held: bool,
    begun: u64,
    branches: Vec<Branch>,
}

#[derive(Serialize)]
struct Branch {
    participant: String,
    prepared: Option<bool>,
}

#[derive(Serialize)]
struct Damage {
    id: String,
    participant: String,
    expected: &'static str,
    found: String,
    seen: u64,
}

#[derive(Serialize)]
struct Unreachable {
    participant: String,
    why: String,
}

impl Everything {
    pub(super) fn of(survey: &Survey) -> Self {
        Everything {
            transactions: survey.transactions.iter().map(Transaction::of).collect(),
            findings: survey.findings.iter().map(found).collect(),
            damages: damages(survey),
            unreachable: survey
                .unreachable
                .iter()
                .map(|it| Unreachable {
                    participant: it.participant.clone(),
                    why: text::without_secrets(&it.why),
                })
                .collect(),
        }
    }
}

fn found((participant, it): &(String, Finding)) -> Found {
    Found {
        participant: participant.clone(),
        severity: severity(it),
        what: it.what.clone(),
        consequence: it.consequence.clone(),
        remedy: it.remedy.clone(),
    }
}

fn severity(finding: &Finding) -> &'static str {
    match finding.severity {
        Severity::Fine => "fine",
        Severity::Warning => "warning",
        _ => "danger",
    }
}

/// What is worse than fine, a line each.
fn warnings(survey: &Survey) -> impl Iterator<Item = String> {
    let worse = survey.findings.iter().filter(|it| it.1.severity > Severity::Fine);
    worse.map(|(whose, it)| {
        format!("{}: {whose}: {}: {}; {}", severity(it), it.what, it.consequence, it.remedy)
    })
}

/// Everything as one line of JSON, for those who follow.
pub(super) fn one_line(survey: &Survey) -> Result<String> {
    let text = serde_json::to_string(&Everything::of(survey));
    let text = text.map_err(|it| Failure::new(exit::NO, format!("this cannot be written as JSON: {it}")))?;
    Ok(text + "\n")
}

/// What there is to tell of each transaction, damage and participant.
pub(super) fn lines(survey: &Survey) -> BTreeMap<String, String> {
    let doubts =
        survey.transactions.iter().map(|it| (it.id.to_string(), format!("{}: {}", todo(it), branches(it))));
    let damages = survey.damages.iter().map(|it| {
        (
            format!("damage {} at {}", it.id, it.participant),
            format!("{}, and should {}", it.found, it.expected),
        )
    });
    let silent = survey.unreachable.iter().map(|it| {
        (
            format!("participant {}", it.participant),
            format!("is not asked: {}", text::without_secrets(&it.why)),
        )
    });
    doubts.chain(damages).chain(silent).collect()
}

/// Transactions of a lost log.
#[derive(Serialize)]
pub(super) struct Orphans {
    orphans: Vec<OrphanJson>,
}

#[derive(Serialize)]
struct OrphanJson {
    id: String,
    prepared: Vec<String>,
    committed: Vec<String>,
    fate: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Orphans {
    pub(super) fn of(orphans: &[Orphan]) -> Self {
        let one = |it: &Orphan| OrphanJson {
            id: it.id.to_string(),
            prepared: it.prepared.clone(),
            committed: it.committed.clone(),
            fate: if it.fate == Fate::Commit { "commit" } else { "nothing" },
            why: reason(it).map(text::without_secrets),
        };
        Orphans { orphans: orphans.iter().map(one).collect() }
    }
}

fn reason(orphan: &Orphan) -> Option<&str> {
    if let Fate::Nothing(why) = &orphan.fate { Some(why) } else { None }
}

/// One line for each transaction of a lost log.
pub(super) fn orphans(orphans: &[Orphan], dry_run: bool) -> String {
    let line = |it: &Orphan| {
        let fate = match reason(it) {
            None if dry_run => String::from("would be committed"),
            None => String::from("is committed"),
            Some(why) if it.prepared.is_empty() => {
                return format!("{} {}\n", it.id, text::without_secrets(why));
            }
            Some(why) => format!("stays prepared: {}", text::without_secrets(why)),
        };
        let (prepared, committed) = (it.prepared.join(", "), it.committed.join(", "));
        let committed = if committed.is_empty() { String::from("nobody") } else { committed };
        format!("{} prepared at {prepared}, committed at {committed}: {fate}\n", it.id)
    };
    orphans.iter().map(line).collect()
}

impl One {
    pub(super) fn of(id: &TransactionId, verdict: &Verdict, survey: &Survey) -> Self {
        let (verdict, why) = words(verdict);
        let in_doubt = survey.transactions.first().map(Transaction::of);
        One { id: id.to_string(), verdict, why, in_doubt, damages: damages(survey) }
    }
}

impl Transaction {
    fn of(it: &InDoubt) -> Self {
        let branch = |(participant, prepared): &(String, Option<bool>)| Branch {
            participant: participant.clone(),
            prepared: *prepared,
        };
        Transaction {
            id: it.id.to_string(),
            decided: it.ruling.map(word),
            note: it.note.clone(),
            seat: it.id.seat(),
            seat_held: it.attended,
            begun: it.id.begun(),
            branches: it.branches.iter().map(branch).collect(),
        }
    }
}

fn damages(survey: &Survey) -> Vec<Damage> {
    let damage = |it: &lockkeeper::twophase::Damage| Damage {
        id: it.id.to_string(),
        participant: it.participant.clone(),
        expected: word(it.expected),
        found: it.found.clone(),
        seen: it.seen,
    };
    survey.damages.iter().map(damage).collect()
}

fn word(ruling: Ruling) -> &'static str {
    if ruling == Ruling::Commit { "commit" } else { "abort" }
}

fn words(verdict: &Verdict) -> (&'static str, Option<String>) {
    match verdict {
        Verdict::Committed => ("committed", None),
        Verdict::Aborted => ("aborted", None),
        Verdict::Unknown(why) => ("unknown", Some(why.clone())),
        _ => ("unknown", None),
    }
}

const HEADING: [&str; 6] = ["ID", "AGE", "STATE", "SEAT", "NOTE", "BRANCHES"];

pub(super) fn table(survey: &Survey) -> String {
    let rows: Vec<[String; 6]> = survey.transactions.iter().map(row).collect();
    table::plain(HEADING, &rows)
}

fn row(it: &InDoubt) -> [String; 6] {
    let age = output::span(Duration::from_secs(it.id.age().as_secs()));
    let state = it.ruling.map_or("undecided", word);
    let seat = format!("{} {}", it.id.seat(), if it.attended { "held" } else { "free" });
    let note = if it.note.is_empty() { "-".to_owned() } else { text::cell(&it.note) };
    [it.id.to_string(), age, state.to_owned(), seat, note, branches(it)]
}

fn branches(it: &InDoubt) -> String {
    let shown =
        it.branches.iter().map(|(whose, prepared)| format!("{}: {}", text::cell(whose), state(*prepared)));
    shown.collect::<Vec<_>>().join(", ")
}

/// How a branch is, in a word.
fn state(prepared: Option<bool>) -> &'static str {
    match prepared {
        Some(true) => "prepared",
        Some(false) => "ended",
        None => "unknown",
    }
}

/// What recovery does about it.
pub(super) fn todo(it: &InDoubt) -> &'static str {
    match (it.attended, it.ruling) {
        (true, _) => "is left to whoever holds its seat",
        (false, Some(Ruling::Commit)) => "is to be committed",
        (false, _) => "is to be rolled back",
    }
}

pub(super) fn story(id: &TransactionId, verdict: &Verdict, survey: &Survey) -> String {
    let (verdict, why) = words(verdict);
    let mut lines = vec![format!("{id}"), format!("verdict   {verdict}")];
    lines.extend(why.map(|it| format!("why       {it}")));
    match survey.transactions.first() {
        Some(it) => {
            lines.push(format!("next      {}", todo(it)));
            if !it.note.is_empty() {
                lines.push(format!("note      {}", text::cell(&it.note)));
            }
            lines.push(format!("branches  {}", branches(it)));
        }
        None => lines.push(String::from("next      nothing: no branch is in doubt")),
    }
    for it in &survey.damages {
        lines.push(format!(
            "damage    {} was {} and should {}",
            text::cell(&it.participant),
            text::cell(&it.found),
            it.expected
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The same for the console: what can be done is told, and typed by whoever decides.
#[cfg(feature = "serve")]
pub(super) fn for_console(survey: &Survey) -> lockkeeper_serve::InDoubts {
    let transactions = survey.transactions.iter().map(|it| {
        let mut shown = lockkeeper_serve::InDoubt::new(it.id.as_str());
        it.ruling.map_or("undecided", word).clone_into(&mut shown.state);
        shown.note.clone_from(&it.note);
        shown.begun = Some(std::time::Duration::from_secs(it.id.begun()));
        shown.attended = it.attended;
        shown.branches = it.branches.iter().map(|(whose, how)| (whose.clone(), state(*how).into())).collect();
        if !it.attended {
            shown.commands = vec![
                "lockkeeper 2pc recover".into(),
                format!("lockkeeper 2pc resolve {} --commit|--abort", it.id),
            ];
        }
        shown
    });
    let damages = survey.damages.iter().map(damage_in_words);
    let dangers = warnings(survey);
    let unasked = survey.unreachable.iter().map(|it| text::without_secrets(&format!("not asked: {it}")));
    lockkeeper_serve::InDoubts::new(transactions.collect(), damages.chain(dangers).chain(unasked).collect())
}

fn damage_in_words(it: &lockkeeper::twophase::Damage) -> String {
    format!("damage: {} at {}: {}, and should {}", it.id, it.participant, it.found, it.expected)
}

/// What belongs beside the list: damages, and participants that were not asked.
pub(super) fn say_beside(survey: &Survey, place: &Place) {
    for it in &survey.damages {
        output::say(&damage_in_words(it));
    }
    for it in warnings(survey) {
        output::say(&it);
    }
    let given = |name: &str| place.participants.iter().any(|it| it.split('=').next() == Some(name));
    for it in survey.unreachable.iter().filter(|it| given(&it.participant)) {
        output::say(&format!("not asked: {it}"));
    }
    for it in survey.participants.iter().filter(|it| !given(&it.name)) {
        output::say(&format!(
            "not asked: {}, at {}; name it with --participant {}=URL",
            it.name, it.place, it.name
        ));
    }
}
