//! A job as cron starts it on every host: `nightly-job TICK FILE`. One of them runs it, the others find it done.

use std::fs::OpenOptions;
use std::io::Write as _;

use lockkeeper::Once;

type Trouble = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tick, file] = args.as_slice() else { return Err("usage: nightly-job TICK FILE".into()) };
    let locker = lockkeeper::connect(&std::env::var("LOCKKEEPER_URL")?).await?;
    let done = locker.once("nightly-report", tick).run(async |_guard| report(tick, file)).await?;
    let word = match done {
        Once::Ran(()) => "ran",
        Once::Done => "was done before",
        _ => "another is at it",
    };
    writeln!(std::io::stdout(), "{tick}: {word}")?;
    Ok(())
}

/// So short that a host whose clock is late would find a plain lock free again.
fn report(tick: &str, file: &str) -> Result<(), Trouble> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    Ok(writeln!(file, "{tick}")?)
}
