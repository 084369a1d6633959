//! The flash sale on real servers: starts a Redis and a MariaDB, and runs `lockkeeper demo flash-sale` on them.
//!
//! `lockkeeper-bench-sale LOCKKEEPER ARG…`: the program, and what follows `demo flash-sale`. What it prints and how
//! it ends are the answer. `cargo xtask bench sale` calls this.

use std::error::Error;
use std::io::Write as _;
use std::process::{Command, ExitCode};

use lockkeeper_servers::{MariaDb, MariaDbOptions, Redis, RedisOptions};

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "bench: error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let program = args.next().ok_or("usage: lockkeeper-bench-sale LOCKKEEPER ARG…")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // As they come: the database flushes every commit to disk, Redis keeps its locks in memory.
        let locks = Redis::start(RedisOptions::default()).await?;
        let books = MariaDb::start(MariaDbOptions::default()).await?;
        let mut command = Command::new(program);
        command.args(["demo", "flash-sale"]).args(args);
        command.env("LOCKKEEPER_URL", locks.url()).env("LOCKKEEPER_DB", books.url());
        let code = command.status()?.code().and_then(|it| u8::try_from(it).ok());
        Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
    })
}
