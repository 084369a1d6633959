//! README.md and the README of the crate: the first code that anybody copies. It runs as it stands there, but for the server.

use std::sync::LazyLock;
use std::time::Duration;

use ::lockkeeper::spi::{Inspect as _, Memory};
use ::lockkeeper::{Fence, Result};

static STORE: LazyLock<Memory> = LazyLock::new(Memory::default);

/// The library, where every URL is that of one store in memory.
mod lockkeeper {
    use ::lockkeeper::{Locker, Result};

    pub(super) async fn connect(_url: &str) -> Result<Locker> {
        Ok(Locker::new(super::STORE.clone()))
    }
}

/// Data that refuse an older fence.
#[derive(Default)]
struct Repository {
    newest: std::cell::Cell<Option<Fence>>,
}

impl Repository {
    async fn save(&self, order: &str, fence: Fence) -> Result<()> {
        assert!(self.newest.replace(Some(fence)) < Some(fence), "{order}: an older one");
        Ok(())
    }
}

async fn build_report() {}
async fn archive(fence: Fence) {}

#[rustfmt::skip]
async fn of_the_repository(repo: &Repository, order: &str) -> Result<()> {
    let locker = lockkeeper::connect("redis://127.0.0.1").await?;

    let guard = locker.lock("orders/42").wait_at_most(Duration::from_secs(3)).await?;
    repo.save(order, guard.fence()).await?;      // refuses an older fence than it has seen: see "fenced writes"
    guard.release().await?;                      // confirmed by the store; dropping the guard releases in the background

    if let Some(guard) = locker.try_lock("nightly-report").await? {
        guard.run_and_release(build_report()).await?;   // stopped if the lock is lost
    }

    locker.with("invoices", async |guard| archive(guard.fence()).await).await?;   // lock, work, release
    Ok(())
}

#[rustfmt::skip]
async fn of_the_crate(repo: &Repository, order: &str) -> Result<()> {
    let locker = lockkeeper::connect("redis://127.0.0.1").await?;

    let guard = locker.lock("orders/42").wait_at_most(Duration::from_secs(3)).await?;
    repo.save(order, guard.fence()).await?;      // your repository refuses an older fence than it has seen
    guard.release().await?;                      // confirmed by the store; dropping the guard releases in the background

    if let Some(guard) = locker.try_lock("nightly-report").await? {
        guard.run_and_release(build_report()).await?;   // stopped if the lock is lost
    }
    Ok(())
}

#[tokio::test]
async fn what_the_readme_takes_it_gives_back() {
    let repo = Repository::default();
    for _ in 0..2 {
        of_the_repository(&repo, "first").await.unwrap();
        assert_eq!(STORE.list("").await.unwrap().len(), 0, "nothing is left when it returns");
        of_the_crate(&repo, "second").await.unwrap();
        assert_eq!(STORE.list("").await.unwrap().len(), 0, "nothing is left when it returns");
    }
}
