//! Take a lock, work, give it back: `cargo run -p lockkeeper --example quick_start --features sqlite -- sqlite:/tmp/locks.db`

use std::io::Write;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> lockkeeper::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locker = lockkeeper::connect(&url).await?;

    let guard = locker.lock("orders/42").wait_at_most(Duration::from_secs(3)).await?;
    say(&format!("held with fence {} for at most {:?}", guard.fence(), guard.remaining()));

    // Stopped at its next await if the lock is lost meanwhile.
    let sum = guard.run(async { (1..=10).sum::<u32>() }).await?;
    say(&format!("worked: {sum}"));
    guard.release().await?;

    match locker.try_lock("orders/42").await? {
        Some(guard) => say(&format!("free again, and the next fence is larger: {}", guard.fence())),
        None => say("somebody else was faster"),
    }
    locker.shutdown(Duration::from_secs(1)).await
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
