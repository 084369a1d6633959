//! The file into which a worker writes what it believes, line by line, as it happens: one that is killed leaves it.
//!
//! ```text
//! had ID WEIGHT CAPACITY ASKED FROM HOW[,HOW] KEY=FENCE[,KEY=FENCE]   a guard was given, and how each lock of it came
//! sure ID AT                                                   it was valid at AT, for certain
//! told ID AT                                                   it was told that it is lost
//! late ID WORDS                                                what it was told does not fit what it says
//! end ID                                                       given back, dropped or lost
//! failed WORD                                                  a request that ended without a guard
//! starved ASKED AT KEY                                         it was given up because it had waited too long
//! stood FROM UNTIL KEY                                         so long the process stood in the store's line, and was given it
//! ```
//! Times are nanoseconds of the clock that all processes share.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use lockkeeper::spi::Moment;

use crate::Trouble;

pub(crate) struct Log(File);

impl Log {
    pub(crate) fn create(path: &Path) -> Result<Self, Trouble> {
        Ok(Log(OpenOptions::new().create_new(true).append(true).open(path)?))
    }

    pub(crate) fn had(
        &self,
        id: u64,
        load: (u32, u32),
        span: (Moment, Moment),
        how: &[&str],
        keys: &[(String, u64)],
    ) {
        let keys: Vec<String> = keys.iter().map(|(key, fence)| format!("{key}={fence}")).collect();
        let ((weight, capacity), keys, how) = (load, keys.join(","), how.join(","));
        let (asked, from) = (span.0.as_nanos(), span.1.as_nanos());
        self.line(format_args!("had {id} {weight} {capacity} {asked} {from} {how} {keys}"));
    }

    pub(crate) fn sure(&self, id: u64, at: Moment) {
        self.line(format_args!("sure {id} {}", at.as_nanos()));
    }

    pub(crate) fn told(&self, id: u64, at: Moment) {
        self.line(format_args!("told {id} {}", at.as_nanos()));
    }

    pub(crate) fn late(&self, id: u64, words: &str) {
        self.line(format_args!("late {id} {words}"));
    }

    pub(crate) fn end(&self, id: u64) {
        self.line(format_args!("end {id}"));
    }

    pub(crate) fn starved(&self, asked: Moment, at: Moment, key: &str) {
        self.line(format_args!("starved {} {} {key}", asked.as_nanos(), at.as_nanos()));
    }

    pub(crate) fn stood(&self, from: Moment, until: Moment, key: &str) {
        self.line(format_args!("stood {} {} {key}", from.as_nanos(), until.as_nanos()));
    }

    pub(crate) fn failed(&self, word: &str) {
        self.line(format_args!("failed {word}"));
    }

    /// One call of the system, so that lines of several tasks do not mix and no line waits in our memory.
    fn line(&self, words: std::fmt::Arguments<'_>) {
        let mut line = String::with_capacity(120);
        // Writing to a string does not fail; a disk that is full ends the run, because evidence would be missing.
        if writeln!(line, "{words}").is_err() || (&self.0).write_all(line.as_bytes()).is_err() {
            std::process::abort();
        }
    }
}
