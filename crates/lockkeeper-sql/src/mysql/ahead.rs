//! How one waits for whoever stands before it on MySQL: for its named lock, which is given back at once. The same trip then
//! looks at one's own row.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::kit::locked;
use tokio::runtime::Handle;

use super::Store;
use super::line::{Mark, Seen, look, sorted};
use super::link::{Ask, Link};
use super::text::bytes;
use crate::ahead::{Chairs, Stand, Stood, has_room};

/// How long one statement waits.
const SPAN: Duration = Duration::from_secs(2);

/// Connections that are open, and the most that may be.
const ROOM: &str = "SELECT @@GLOBAL.max_connections; SHOW GLOBAL STATUS LIKE 'Threads_connected'";

/// What is between the name of this kind of lock and the claim, in the procedures as well.
pub(super) fn name_of(id: &[u8]) -> String {
    format!("CONCAT('lockkeeper/', HEX({}))", bytes(id))
}

/// What was seen when that one had gone.
pub(super) type Glimpse = Arc<Mutex<Option<Seen>>>;

/// The named lock of whoever stands before us, and who we are.
pub(crate) struct Ahead {
    pub(super) name: String,
    pub(super) own: Mark,
    pub(super) glimpse: Glimpse,
}

/// A connection on which one waits.
pub(crate) struct Chair(Link);

impl Stand for Store {
    type Chair = Chair;
    type Ahead = Ahead;

    fn chairs(&self) -> &Chairs<Chair> {
        &self.chairs
    }

    async fn open(&self, wished: usize) -> Option<Chair> {
        let (links, nothing) = (&self.links, Moment::from_nanos(0));
        let patience = links.options.common.timeout;
        let reply = links.try_ask(&links.renewals(), &Ask::Text(ROOM.into()), patience).await.ok()?;
        let most = reply.rows.first()?.first()?.get_opt(0)?.ok()?;
        let open: String = reply.rows.get(1)?.first()?.get_opt(1)?.ok()?;
        if !has_room(open.parse().ok()?, most, wished) {
            return None;
        }
        let link = Link::start(links.options.clone(), Handle::try_current().ok()?, None);
        link.send(Ask::Nothing, patience, nothing).await.ok()?;
        Some(Chair(link))
    }

    async fn stand(&self, chair: &Chair, ahead: &Ahead, _before: u32) -> Stood {
        match self.try_stand(chair, ahead).await {
            Some(true) => Stood::Gone,
            Some(false) => Stood::Still,
            None => Stood::Useless,
        }
    }
}

impl Store {
    /// Whether that one has gone, if there is an answer.
    async fn try_stand(&self, chair: &Chair, ahead: &Ahead) -> Option<bool> {
        let (name, seconds) = (&ahead.name, SPAN.as_secs());
        let stand = format!("SELECT GET_LOCK({name}, {seconds}), RELEASE_LOCK({name}); {}", look(&ahead.own));
        let ask = Ask::Patient(stand);
        let patience = SPAN + self.links.options.common.timeout;
        let reply = chair.0.send(ask, patience, Moment::from_nanos(0)).await.ok()?;
        let got: Option<i64> = reply.rows.first()?.first()?.get_opt(0)?.ok()?;
        *locked(&ahead.glimpse) = sorted(&[ahead.own], &[reply]).pop();
        got.map(|it| it == 1)
    }
}
