//! The herald: of those who share a lock and wait for one who cannot be waited for, the first. It looks for all of them,
//! often; the others wait for a named lock of its, which it gives back when it hears that they were let in.
//!
//! Whoever found the lock free holds no named lock: taking one would cost each free lock something, and nobody may come.
//! The herald's lock is named after the one who keeps all of them out, so that whoever comes finds it without looking at
//! the line, and takes the herald's place if the herald's session has ended. As all such locks it is only a hint.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::kit::Pace;
use tokio::task::JoinHandle;

use super::link::{Ask, Link};
use super::place::MysqlPlace;
use super::text::bytes;
use crate::ahead::Permit;

/// Asked of the procedure: wait for the herald, if there is one.
pub(super) const FOLLOW: u8 = 4;
/// Asked of the procedure: be the herald, if there is none.
pub(super) const HERALD: u8 = 8;

/// The longest pause of a herald between two looks.
const LONGEST: Duration = Duration::from_millis(20);

/// The name of the herald's lock, in the procedures as well.
pub(super) fn name_behind(blocker: &[u8]) -> String {
    format!("CONCAT('lockkeeper/behind/', HEX({}))", bytes(blocker))
}

/// How long a herald pauses if the line has stood `still` for so long. All who wait enter so much later at most, and
/// together look less often than each would alone.
pub(super) fn pause(still: Duration) -> Duration {
    (still / 256).clamp(Pace::SHORTEST, LONGEST)
}

/// The session that holds the herald's lock.
#[derive(Debug)]
pub(super) struct Herald {
    link: Arc<Link>,
    blocker: Vec<u8>,
    /// Somebody waits behind us, as we last saw.
    pub(super) is_followed: bool,
    _permit: Permit,
}

impl Herald {
    pub(super) fn new(link: Arc<Link>, blocker: Vec<u8>, permit: Permit) -> Self {
        Herald { link, blocker, is_followed: false, _permit: permit }
    }

    /// Those who wait for us look at once. If it fails, the session has ended, and the lock with it.
    fn call(self, patience: Duration) -> JoinHandle<()> {
        let free = Ask::Text(format!("DO RELEASE_LOCK({})", name_behind(&self.blocker)));
        let runtime = self.link.runtime.clone();
        runtime.spawn(async move { drop(self.link.send(free, patience, Moment::from_nanos(0)).await) })
    }
}

impl MysqlPlace {
    /// What we ask of the procedure about heralds, beside `bell`, and the room for a lock of our own. Nothing unless all who
    /// wait together are let in together.
    pub(super) fn ask_for_herald(&self, bell: u8) -> (u8, Option<Permit>) {
        let load = self.claim.load;
        if bell == 0 || self.herald.is_some() || load.capacity != u32::MAX || load.weight == load.capacity {
            return (0, None);
        }
        match self.store.chairs.permit() {
            Some(permit) => (FOLLOW | HERALD, Some(permit)),
            None => (FOLLOW, None),
        }
    }

    /// We are the herald no more.
    pub(super) fn call_followers(&mut self) {
        if let Some(herald) = self.herald.take() {
            self.calling = Some(herald.call(self.store.links.patience(self.claim.ttl)));
        }
    }

    /// They are called before anybody hears that we are in: our session is that of our caller's runtime, which may stand still
    /// from then on. Not waited for longer than a herald pauses.
    pub(super) async fn followers_are_called(&mut self) {
        if let Some(calling) = self.calling.take() {
            let clock = &self.store.links.clock;
            clock.within(clock.now().after(LONGEST), calling).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_herald_looks_often_however_long_it_waits() {
        assert_eq!(pause(Duration::ZERO), Pace::SHORTEST);
        assert_eq!(pause(Duration::from_millis(1024)), Duration::from_millis(4));
        assert_eq!(pause(Duration::from_secs(3600)), LONGEST);
    }
}
