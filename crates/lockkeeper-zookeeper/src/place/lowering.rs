//! Going on as a reader: a second node of ours, beside the first, says so.
//!
//! What a claim weighs is part of its node's name, by which a list of names is all that others need; and a name cannot be
//! changed without losing the place. So whoever went on as a reader is marked. The mark goes with the session, as the node
//! does, and is made only if the node is there. A program that does not know marks passes over them and waits for the end.

use lockkeeper_core::Load;
use lockkeeper_core::backend::{Fault, Result};
use zookeeper_client::{CreateMode, Error};

use super::{LEAVING, ZooKeeperPlace, over};
use crate::fault::NAME;
use crate::line::mark_of;
use crate::session::Session;

const LOWERING: &str = "sharing what is held";

impl ZooKeeperPlace {
    pub(super) async fn mark_as(&mut self, load: Load) -> Result<bool> {
        if load != Load::READER {
            return Err(Fault::permanent(NAME, LOWERING, "whoever holds a lock can go on as a reader only"));
        }
        let (Some(session), Some(node), Some(_)) = (self.session.clone(), self.node.clone(), self.counter)
        else {
            return Ok(false);
        };
        let path = self.path(&node);
        let mark = self.mark.insert(mark_of(&path)).clone();
        let options = CreateMode::Ephemeral.with_acls(self.acls());
        let made = session.create_beside(&path, &mark, &options);
        let mut made = over(&session, self.store.call(&session, LOWERING, made).await.map(Ok))?
            .unwrap_or(Err(Error::NoNode));
        if matches!(made, Err(Error::NodeExists)) {
            let checked = self.store.call(&session, LOWERING, session.check(&path)).await;
            made = over(&session, checked.map(Ok))?.unwrap_or(Err(Error::NoNode));
        }
        if made.is_err() {
            self.reset();
            return Ok(false);
        }
        self.claim.load = load;
        Ok(true)
    }

    /// The mark goes after the node: whoever is inside beside us never sees us without it.
    pub(super) async fn remove_mark(&mut self, session: &Session) -> Result<()> {
        if let Some(mark) = &self.mark {
            let deleted = self.store.call(session, LEAVING, session.client.delete(mark, None)).await;
            over(session, deleted)?;
            self.mark = None;
        }
        Ok(())
    }
}
