//! Hears that names take turns.

use std::sync::{Arc, Mutex};

use lockkeeper_core::kit::locked;
use lockkeeper_core::observe::{Event, Observer};
use tokio::sync::Notify;

/// The names that do not stand in the server's line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<(Mutex<Vec<String>>, Notify)>);

impl Turns {
    /// Wait until so many were told of, each once.
    pub(crate) async fn are_told(&self, count: usize) {
        loop {
            let told = locked(&self.0.0).clone();
            let mut names = told.clone();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), told.len(), "told twice to one caller: {told:?}");
            if count <= names.len() {
                return;
            }
            self.0.1.notified().await;
        }
    }
}

impl Observer for Turns {
    fn observe(&self, event: &Event<'_>) {
        if let Event::TakesTurns { key, .. } = event {
            locked(&self.0.0).push(key.as_str().to_owned());
            self.0.1.notify_one();
        }
    }
}
