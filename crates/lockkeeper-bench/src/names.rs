//! A million distinct names, held all at once and then given back: the memory must come back too.

use std::process::Command;

use crate::Outcome;
use crate::report::{Bound, Row};

pub(crate) fn run() -> Outcome {
    let program = std::env::current_exe()?.with_file_name("lockkeeper-bench-names");
    let out = Command::new(&program).output()?;
    if !out.status.success() {
        return Err(format!("{}: {}", program.display(), String::from_utf8_lossy(&out.stderr)).into());
    }
    let numbers = String::from_utf8(out.stdout)?;
    let numbers: Vec<f64> = numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [before, held, after] = numbers[..] else { return Err("three numbers were expected".into()) };
    let mib = |bytes: f64| bytes / 1024.0 / 1024.0;
    Ok(vec![Row {
        what: "bytes allocated: a million names held at once, then given back (ratio = share that stays)",
        ours: format!("{:.2} → {:.0} → {:.2} MiB", mib(before), mib(held), mib(after)),
        theirs: format!("{:.2} MiB at the start", mib(before)),
        ratio: (after - before).max(0.0) / (held - before),
        bound: Bound::AtMost(0.01),
        note: "no line and no row is left".to_owned(),
    }])
}
