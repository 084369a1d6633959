//! `#[locked]` with a note, with locks that stay warm or do not, and with locks that are kept for a while, over a store in memory.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::observe::{Event, GrantedBy, Observer};
use lockkeeper::spi::{Inspect as _, Memory};
use lockkeeper::{Error, Key, Locker, LockerBuilder, locked};

type Result<T, E = Error> = std::result::Result<T, E>;

const HOUR: Duration = Duration::from_secs(3600);

/// How each lock was had.
#[derive(Clone, Debug, Default)]
struct Had(Arc<Mutex<Vec<GrantedBy>>>);

impl Observer for Had {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Granted { by, .. } = event {
            self.0.lock().unwrap().push(*by);
        }
    }
}

/// A locker over a store that others could use, too, and what is heard of it.
struct Scene {
    store: Memory,
    locker: Locker,
    had: Had,
}

impl Scene {
    fn new(settings: impl FnOnce(LockerBuilder) -> LockerBuilder) -> Self {
        let (store, had) = (Memory::default(), Had::default());
        let builder = Locker::builder(store.clone()).ttl(HOUR).observer(had.clone());
        Scene { store, locker: settings(builder).build(), had }
    }

    async fn is_held(&self, name: &str) -> bool {
        self.store.show(&Key::new(name).unwrap()).await.unwrap().is_some_and(|it| !it.holders.is_empty())
    }

    fn had(&self) -> Vec<GrantedBy> {
        std::mem::take(&mut self.had.0.lock().unwrap())
    }
}

/// The note that whoever lists the locks reads.
async fn note(store: &Memory, name: &str) -> Option<String> {
    let shown = store.show(&Key::new(name).unwrap()).await.unwrap().unwrap();
    shown.holders[0].label.note.clone()
}

struct Import<'a> {
    locker: &'a Locker,
    store: &'a Memory,
    file: &'static str,
}

impl Import<'_> {
    #[locked("import:{id}", note = "import of {id}", locker = self.locker)]
    async fn with_a_format(&self, id: u64) -> Result<Option<String>> {
        Ok(note(self.store, &format!("import:{id}")).await)
    }

    #[locked("import", note = self.file, locker = self.locker)]
    async fn with_an_expression(&self) -> Result<Option<String>> {
        Ok(note(self.store, "import").await)
    }

    #[locked("import", shared, try, note = format!("read {}", self.file), locker = self.locker)]
    async fn shared(&self) -> Result<Option<String>> {
        Ok(note(self.store, "import").await)
    }

    #[locked("one", "two", note = "both", locker = self.locker)]
    async fn of_two(&self) -> Result<[Option<String>; 2]> {
        Ok([note(self.store, "one").await, note(self.store, "two").await])
    }

    #[locked("plain", note = "{what} of a plain function", locker = self.locker)]
    fn plain(&self, what: &str) -> Result<Option<String>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Ok(runtime.block_on(note(self.store, "plain")))
    }
}

#[tokio::test]
async fn whoever_lists_the_locks_reads_the_note() {
    let scene = Scene::new(|it| it);
    let import = Import { locker: &scene.locker, store: &scene.store, file: "prices.csv" };
    assert_eq!(import.with_a_format(7).await.unwrap().as_deref(), Some("import of 7"));
    assert_eq!(import.with_an_expression().await.unwrap().as_deref(), Some("prices.csv"));
    assert_eq!(import.shared().await.unwrap().as_deref(), Some("read prices.csv"));
    assert_eq!(import.of_two().await.unwrap(), [Some("both".to_owned()), Some("both".to_owned())]);
}

#[test]
fn a_plain_function_has_a_note_too() {
    let scene = Scene::new(|it| it);
    let import = Import { locker: &scene.locker, store: &scene.store, file: "" };
    assert_eq!(import.plain("the work").unwrap().as_deref(), Some("the work of a plain function"));
}

#[locked("tenant", warm, locker = locker)]
async fn stays(locker: &Locker) -> Result<()> {
    Ok(())
}

#[locked("tenant", warm, try, locker = locker)]
fn stays_blocking(locker: &Locker) -> Result<()> {
    Ok(())
}

#[locked("tenant", cold, locker = locker)]
async fn goes(locker: &Locker) -> Result<()> {
    Ok(())
}

#[locked("tenant", locker = locker)]
async fn as_the_locker_says(locker: &Locker) -> Result<()> {
    Ok(())
}

#[locked("readers", shared, warm, locker = locker)]
async fn readers_stay(locker: &Locker) -> Result<()> {
    Ok(())
}

#[tokio::test]
async fn a_warm_lock_stays_after_its_function_and_is_taken_again_without_asking() {
    let scene = Scene::new(|it| it);
    as_the_locker_says(&scene.locker).await.unwrap();
    assert!(!scene.is_held("tenant").await, "by default nothing stays");
    scene.had();

    stays(&scene.locker).await.unwrap();
    assert!(scene.is_held("tenant").await);
    stays(&scene.locker).await.unwrap();
    assert_eq!(scene.had(), [GrantedBy::Store, GrantedBy::Warm]);
    goes(&scene.locker).await.unwrap();
    assert!(!scene.is_held("tenant").await, "the last one said so");
    readers_stay(&scene.locker).await.unwrap();
    assert!(scene.is_held("readers").await);
}

#[tokio::test]
async fn a_cold_lock_goes_where_the_locker_keeps_them() {
    let scene = Scene::new(|it| it.warm(true));
    goes(&scene.locker).await.unwrap();
    assert!(!scene.is_held("tenant").await);
    as_the_locker_says(&scene.locker).await.unwrap();
    assert!(scene.is_held("tenant").await);
}

#[test]
fn a_plain_function_keeps_its_lock_warm() {
    let scene = Scene::new(|it| it);
    stays_blocking(&scene.locker).unwrap();
    stays_blocking(&scene.locker).unwrap();
    assert_eq!(scene.had(), [GrantedBy::Store, GrantedBy::Warm]);
}

#[locked("nightly", try, at_least = "1h", or = Ok(false), locker = locker)]
async fn nightly(locker: &Locker) -> Result<bool> {
    Ok(true)
}

#[locked("hourly", try, at_least = HOUR / 2, or = false, locker = locker)]
fn hourly(locker: &Locker) -> bool {
    true
}

#[tokio::test]
async fn a_short_job_keeps_others_out_for_a_while_after_it_has_ended() {
    let scene = Scene::new(|it| it);
    let late = Locker::new(scene.store.clone());
    assert!(nightly(&scene.locker).await.unwrap());
    assert!(!nightly(&late).await.unwrap(), "an instance whose clock is late finds it taken");
    assert!(!nightly(&scene.locker).await.unwrap(), "and so does this one");
}

#[test]
fn a_short_plain_job_does_so_too() {
    let scene = Scene::new(|it| it);
    assert!(hourly(&scene.locker));
    assert!(!hourly(&Locker::new(scene.store.clone())));
}
