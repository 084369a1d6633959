//! `lockkeeper doctor`: which settings of the store endanger locks.

use std::fmt::Write as _;

use lockkeeper::spi::{Finding, Severity};
use serde::Serialize;

use crate::exit::{self, Result};
use crate::looking::Doctor;
use crate::output;
use crate::screen::{Screen, Tone};
use crate::store::Target;
use crate::{help, text};

#[derive(Serialize)]
struct Report<'a> {
    store: String,
    findings: Vec<FindingJson<'a>>,
}

#[derive(Serialize)]
struct FindingJson<'a> {
    severity: &'static str,
    what: &'a str,
    consequence: &'a str,
    remedy: &'a str,
    /// How often it was found.
    count: usize,
}

pub(crate) async fn doctor(target: &Target, args: Doctor) -> Result<u8> {
    let store = target.open().await?;
    let mut findings = store.inspect.doctor().await.map_err(|it| target.failure(it))?;
    // Whoever has locks and participants of two-phase commit asks once for both.
    let participants = crate::two_phase::findings(target).await?;
    findings.extend(participants.into_iter().map(|(whose, it)| {
        Finding::new(it.severity, format!("{whose}: {}", it.what), it.consequence, it.remedy)
    }));
    // The worst first: it is what the reader came for.
    findings.sort_by_key(|it| std::cmp::Reverse(it.severity));
    let findings = counted(findings.into_iter().map(with_pages).collect());
    if args.json.json {
        let findings = findings.iter().map(in_json).collect();
        let store = target.shown();
        output::json(&Report { store, findings })?;
    } else {
        output::data(&in_words(&target.shown(), &findings, args.all, Screen::now()))?;
    }
    let allowed = if args.strict { Severity::Fine } else { Severity::Warning };
    Ok(if count(&findings, |it| it > allowed) == 0 { 0 } else { exit::NO })
}

/// A remedy may name a page.
fn with_pages(mut it: Finding) -> Finding {
    it.remedy = help::with_pages(&it.remedy);
    it
}

/// The same finding once, with how often it was made.
fn counted(findings: Vec<Finding>) -> Vec<(Finding, usize)> {
    let mut counted: Vec<(Finding, usize)> = Vec::new();
    for it in findings {
        match counted.iter_mut().find(|(seen, _)| *seen == it) {
            Some((_, count)) => *count += 1,
            None => counted.push((it, 1)),
        }
    }
    counted
}

fn in_json((it, count): &(Finding, usize)) -> FindingJson<'_> {
    FindingJson {
        severity: word(it.severity),
        what: &it.what,
        consequence: &it.consequence,
        remedy: &it.remedy,
        count: *count,
    }
}

fn in_words(store: &str, findings: &[(Finding, usize)], all: bool, screen: Screen) -> String {
    let mut out = format!("store: {store}\n");
    for (it, count) in findings.iter().filter(|it| all || it.0.severity > Severity::Fine) {
        let times = if *count == 1 { String::new() } else { format!(" ({count} times)") };
        let word = screen.paint(&format!("{:8}", word(it.severity)), tone(it.severity));
        let _ = writeln!(out, "{word} {}{times}", text::message(&it.what));
        for (title, said) in [("so", &it.consequence), ("do", &it.remedy)] {
            if !said.is_empty() {
                let _ = writeln!(out, "         {title}: {}", text::message(said));
            }
        }
    }
    let fine = count(findings, |it| it == Severity::Fine);
    if !all && fine > 0 {
        let _ = writeln!(out, "{fine} fine; see them with --all");
    }
    out.push_str(verdict(findings).as_str());
    text::without_secrets(&out)
}

/// What it comes to. A warning is about what has not happened: a restart, a failover, a power cut.
fn verdict(findings: &[(Finding, usize)]) -> String {
    let plural =
        |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
    let dangers = count(findings, |it| it > Severity::Warning);
    let warnings = count(findings, |it| it == Severity::Warning);
    match (dangers, warnings) {
        (0, 0) => "nothing endangers locks here\n".to_owned(),
        (0, _) => {
            let warnings = plural(warnings, "warning", "warnings");
            format!("no danger as things are now; {warnings} of what may come\n")
        }
        _ => {
            let dangers = plural(dangers, "danger", "dangers");
            format!("{dangers}: locks can be lost, or held by two at once, or cannot be obtained\n")
        }
    }
}

fn count(findings: &[(Finding, usize)], which: impl Fn(Severity) -> bool) -> usize {
    findings.iter().filter(|(it, _)| which(it.severity)).count()
}

fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Fine => Tone::Good,
        Severity::Warning => Tone::Warning,
        _ => Tone::Bad,
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Fine => "fine",
        Severity::Warning => "warning",
        // What a newer store finds worse than a danger is at least one.
        _ => "danger",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_that_is_repeated_is_told_once_with_its_count() {
        let finding = || Finding::warning("a foreign key", "it is in the way", "remove it");
        let findings = counted(vec![finding(), Finding::fine("all well", ""), finding(), finding()]);
        let words = in_words("x:", &findings, true, Screen::default());
        let shorter = in_words("x:", &findings, false, Screen::default());
        assert!(words.contains("all well") && !shorter.contains("all well"), "{shorter}");
        assert!(shorter.contains("1 fine; see them with --all\n"), "{shorter}");
        assert_eq!(words.matches("a foreign key").count(), 1, "{words}");
        assert!(words.contains("warning  a foreign key (3 times)\n"), "{words}");
        assert!(words.ends_with("no danger as things are now; 1 warning of what may come\n"), "{words}");
        let json = serde_json::to_value(findings.iter().map(in_json).collect::<Vec<_>>()).unwrap();
        assert_eq!((&json[0]["count"], &json[1]["count"]), (&3.into(), &1.into()));
    }

    #[test]
    fn a_remedy_leads_to_a_page_that_everybody_can_read() {
        let it = with_pages(Finding::warning("a", "b", "see docs/guides/ttl-and-wait.md"));
        assert_eq!(it.remedy, format!("see {}guides/ttl-and-wait.md", help::PAGES));
    }

    #[test]
    fn the_verdict_agrees_with_the_exit_code() {
        let danger = counted(vec![Finding::danger("x", "y", "z"), Finding::warning("a", "b", "c")]);
        assert!(verdict(&danger).starts_with("1 danger: "));
        assert_eq!(count(&danger, |it| it > Severity::Warning), 1);
        assert_eq!(verdict(&counted(vec![Finding::fine("x", "")])), "nothing endangers locks here\n");
    }
}
