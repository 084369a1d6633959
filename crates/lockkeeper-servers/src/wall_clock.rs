//! A server whose wall clock can be set, forward and back, while it runs: a shim that is loaded into its process.
//!
//! The threads of MySQL and MariaDB wait until a time of day. The kernel goes by its own clock, so the shim tells it for how long
//! instead, reckoned when the wait begins; waits that are under way when the clock is set end as they would have.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{KitError, Launch};

const SHIM: &str = include_str!("wall_clock.c");

/// The clock of one server.
#[derive(Debug)]
pub(crate) struct WallClock {
    library: PathBuf,
    /// The offset in microseconds, which the shim has mapped.
    offset: PathBuf,
}

impl WallClock {
    /// Build the shim in this folder. `cc` is there: without it no Rust program could be linked.
    pub(crate) fn new(folder: &Path) -> Result<Self, KitError> {
        let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
        fs::write(&source, SHIM)?;
        let mut cc = Command::new("cc");
        let built = cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output()?;
        if !built.status.success() {
            let why = String::from_utf8_lossy(&built.stderr).into_owned();
            return Err(KitError::new(format!("the clock shim cannot be built: {why}")));
        }
        let clock = WallClock { library, offset: folder.join("clock.offset") };
        fs::write(&clock.offset, 0_i64.to_ne_bytes())?;
        Ok(clock)
    }

    /// The same program under this clock.
    pub(crate) fn rule(&self, launch: Launch) -> Launch {
        launch.env("LD_PRELOAD", &self.library).env("LOCKKEEPER_CLOCK", &self.offset)
    }

    /// Let the clock differ by so many milliseconds from the machine's.
    pub(crate) fn set(&self, millis: i64) -> Result<(), KitError> {
        // In place: a file that is cut short while it is mapped would kill the server.
        let file = OpenOptions::new().write(true).open(&self.offset)?;
        file.write_all_at(&millis.saturating_mul(1000).to_ne_bytes(), 0)?;
        Ok(())
    }
}
