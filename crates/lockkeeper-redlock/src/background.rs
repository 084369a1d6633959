//! A thread of our own, on which verbs are finished that outlasted their timeout.

use std::sync::{Arc, OnceLock};

use lockkeeper_core::kit::{Driver, Tasks};
use lockkeeper_core::{Spawn, Task};
use tokio::runtime::Handle;

/// Started when first needed; ends when its owner and its last task are gone.
#[derive(Debug, Default)]
pub(crate) struct Background {
    driver: OnceLock<Option<Driver>>,
    tasks: Arc<Tasks>,
}

impl Spawn for Background {
    fn spawn(&self, task: Task) {
        let start = || {
            let tasks = self.tasks.clone();
            Driver::start("lockkeeper-redlock", async move || tasks.drained().await).ok()
        };
        match self.driver.get_or_init(start) {
            Some(driver) => drop(driver.handle().spawn(self.tasks.track(task))),
            // No thread is to be had. The caller's runtime is the next best place.
            None => drop(Handle::try_current().map(|it| it.spawn(task))),
        }
    }
}
