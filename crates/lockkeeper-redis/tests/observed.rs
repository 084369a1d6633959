//! Observers on a real server: each trip with its verb and its answer, and an outage as such.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::Locker;
use lockkeeper_core::observe::{Answer, Event, Observer, Verb};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{Redis as Server, RedisOptions};

#[derive(Clone, Debug, Default)]
struct Book {
    trips: Arc<Mutex<Vec<(Verb, Answer)>>>,
    exits: Arc<Mutex<Vec<&'static str>>>,
}

impl Observer for Book {
    fn observe(&self, event: &Event<'_>) {
        let exit = match event {
            Event::Asked { verb, answer, .. } => return self.trips.lock().unwrap().push((*verb, *answer)),
            Event::Arrived { .. } => "arrived",
            Event::Granted { .. } => "granted",
            Event::Busy { .. } => "busy",
            Event::Failed { .. } => "failed",
            _ => return,
        };
        self.exits.lock().unwrap().push(exit);
    }
}

impl Book {
    fn trips(&self) -> Vec<(Verb, Answer)> {
        std::mem::take(&mut self.trips.lock().unwrap())
    }

    fn exits(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.exits.lock().unwrap())
    }
}

#[tokio::test]
async fn each_trip_is_told_with_its_verb_and_answer() {
    let server = Server::start(RedisOptions::default()).await.unwrap();
    let book = Book::default();
    let store = Redis::connect(&server.url()).await.unwrap();
    let locker = Locker::builder(store).observer(book.clone()).outage_max(Duration::from_secs(2)).build();
    let other = Locker::new(Redis::connect(&server.url()).await.unwrap());

    locker.lock("a").await.unwrap().release().await.unwrap();
    assert_eq!(book.trips(), [(Verb::Turn, Answer::Held), (Verb::Leave, Answer::Left)]);
    assert_eq!(book.exits(), ["arrived", "granted"]);

    let held = other.lock("a").await.unwrap();
    assert!(locker.try_lock("a").await.unwrap().is_none());
    assert_eq!(book.trips(), [(Verb::Turn, Answer::Wait)]);
    assert_eq!(book.exits(), ["arrived", "busy"]);
    held.release().await.unwrap();

    server.kill().unwrap();
    locker.lock("a").await.unwrap_err();
    let trips = book.trips();
    assert!(trips.contains(&(Verb::Turn, Answer::Fault)), "{trips:?}");
    assert_eq!(book.exits(), ["arrived", "failed"]);
}
