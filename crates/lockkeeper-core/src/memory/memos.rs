//! Memos inside this process, as a store keeps them.

use std::pin::pin;
use std::time::Duration;

use crate::clock::Moment;
use crate::key::Key;
use crate::memory::Memory;
use crate::spi::backend::Result;
use crate::spi::memos::{Memo, Memos, Swap};

impl Memos for Memory {
    async fn read(&self, key: &Key) -> Result<Option<Memo>> {
        Ok(self.0.memos.at(key, self.0.clock.now()).map(|it| it.0))
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Result<Swap> {
        Ok(self.0.memos.swap(key, seen, value, self.0.clock.now(), keep))
    }

    async fn changed(&self, key: &Key, seen: Option<u64>) {
        loop {
            let mut rung = pin!(self.0.memos.bell.notified());
            rung.as_mut().enable();
            let there = self.0.memos.at(key, self.0.clock.now());
            if there.as_ref().map(|it| it.0.version) != seen {
                return;
            }
            let over_at = there.map_or(Moment::NEVER, |it| it.1);
            self.0.clock.within(over_at, rung).await;
        }
    }
}
