//! A program with threads and without async: `plain-threads FILE` counts in a file that several processes share.

use std::fs;
use std::time::Duration;

use lockkeeper::{Error, Locker};

type Trouble = Box<dyn std::error::Error + Send + Sync>;

const THREADS: usize = 4;
const ROUNDS: usize = 5;

fn main() -> Result<(), Trouble> {
    let file = std::env::args().nth(1).ok_or("usage: plain-threads FILE")?;
    let url = std::env::var("LOCKKEEPER_URL")?;
    let locker = lockkeeper::open_blocking(&url)?
        .locker
        .ttl(Duration::from_secs(60))
        .wait_at_most(Duration::from_secs(120))
        .build();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| count(&locker, &file))).collect();
        threads.into_iter().try_for_each(|it| it.join().map_err(|_| "a thread panicked")?)
    })
}

fn count(locker: &Locker, file: &str) -> Result<(), Trouble> {
    for _ in 0..ROUNDS {
        let guard = locker.lock("counter").blocking()?;
        let number: u64 = fs::read_to_string(file)?.trim().parse()?;
        guard.check()?; // last look before the write
        fs::write(file, (number + 1).to_string())?;
        match guard.release_blocking() {
            // It was written under the lock; who confirms the release later does not matter.
            Ok(()) | Err(Error::Unavailable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
