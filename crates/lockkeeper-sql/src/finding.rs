//! A doctor's finding in one line.

use lockkeeper_core::inspect::{Finding, Severity};

/// What was seen, what follows, what to do.
pub(crate) fn finding(
    severity: Severity,
    what: impl Into<String>,
    consequence: &str,
    remedy: &str,
) -> Finding {
    Finding { severity, what: what.into(), consequence: consequence.to_owned(), remedy: remedy.to_owned() }
}
