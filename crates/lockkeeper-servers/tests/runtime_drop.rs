//! The check of dropped runtimes lets a sound store pass, and notices a panic on any thread.

use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::backend::Backend;
use lockkeeper_core::{Clock, Locker, Memory};
use lockkeeper_servers::runtime_drop::{self, Remote, TTL};

fn locker(backend: impl Backend) -> Locker {
    Locker::builder(backend).ttl(TTL).build()
}

/// A store without a server, so that nothing can be the matter with it.
struct Sound(Memory);

impl Remote for Sound {
    async fn start() -> Self {
        Sound(Memory::new(Clock::boot()))
    }

    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }

    async fn connect(&self, _ports: &[u16]) -> Locker {
        locker(self.0.clone())
    }
}

lockkeeper_servers::runtime_drop!(a_sound_store_passes, Sound);

/// The same, with a thread of its own that uses a timer of the runtime on which it was connected.
struct Careless(Sound);

impl Remote for Careless {
    async fn start() -> Self {
        Careless(Sound::start().await)
    }

    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }

    async fn connect(&self, ports: &[u16]) -> Locker {
        let mut timer = Box::pin(Clock::boot().sleep(Duration::from_secs(3600)));
        // Once here, so that the timer belongs to this runtime.
        assert!(std::future::poll_fn(|it| Poll::Ready(timer.as_mut().poll(it))).await.is_pending());
        std::thread::spawn(move || {
            let own = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            own.block_on(timer);
        });
        self.0.connect(ports).await
    }
}

#[test]
fn a_panic_on_a_thread_of_the_store_is_noticed() {
    let checked = std::panic::catch_unwind(|| {
        runtime_drop::check::<Careless>("runtime_drop::a_panic_on_a_thread_of_the_store_is_noticed");
    });
    let said = checked.expect_err("the flaw is noticed");
    let said = said.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(said.contains("panic on the thread"), "{said}");
}
