//! `lockkeeper doctor`: which settings of the store endanger locks.

use std::fmt::Write as _;

use lockkeeper::spi::{Finding, Severity};
use serde::Serialize;

use crate::args::Json;
use crate::exit::{self, Result};
use crate::output;
use crate::store::Target;
use crate::text;

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
}

pub(crate) async fn doctor(target: &Target, args: Json) -> Result<u8> {
    let store = target.open().await?;
    let mut findings = store.inspect.doctor().await.map_err(|it| target.failure(it))?;
    // The worst first: it is what the reader came for.
    findings.sort_by_key(|it| std::cmp::Reverse(it.severity));
    if args.json {
        let findings = findings.iter().map(in_json).collect();
        let store = target.shown();
        output::json(&Report { store, findings })?;
    } else {
        output::data(&in_words(&target.shown(), &findings))?;
    }
    let danger = findings.iter().any(|it| it.severity == Severity::Danger);
    Ok(if danger { exit::NO } else { 0 })
}

fn in_json(it: &Finding) -> FindingJson<'_> {
    FindingJson {
        severity: word(it.severity),
        what: &it.what,
        consequence: &it.consequence,
        remedy: &it.remedy,
    }
}

fn in_words(store: &str, findings: &[Finding]) -> String {
    let mut out = format!("store: {store}\n");
    for it in findings {
        let _ = writeln!(out, "{:8} {}", word(it.severity), text::message(&it.what));
        for (title, said) in [("so", &it.consequence), ("do", &it.remedy)] {
            if !said.is_empty() {
                let _ = writeln!(out, "         {title}: {}", text::message(said));
            }
        }
    }
    if !findings.iter().any(|it| it.severity > Severity::Fine) {
        out.push_str("nothing endangers locks here\n");
    }
    text::without_secrets(&out)
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Fine => "fine",
        Severity::Warning => "warning",
        // What a newer store finds worse than a danger is at least one.
        _ => "danger",
    }
}
