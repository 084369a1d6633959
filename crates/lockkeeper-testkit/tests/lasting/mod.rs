//! A store that forgets nobody by itself, as one does that keeps a session for the whole process.
//!
//! What is left behind there stays, so that nothing is forgiven which a short ttl would hide.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Memory};

/// Longer than any test.
const FOR_EVER: Duration = Duration::from_secs(36_000_000);

#[derive(Clone, Debug)]
pub(crate) struct Lasting(pub(crate) Memory);

#[derive(Debug)]
pub(crate) struct LastingPlace {
    place: <Memory as Backend>::Place,
    ttl: Duration,
}

impl Backend for Lasting {
    type Place = LastingPlace;

    fn profile(&self) -> Profile {
        self.0.profile().by_session()
    }

    fn enter(&self, claim: Claim) -> LastingPlace {
        let ttl = claim.ttl;
        LastingPlace { place: self.0.enter(claim.ttl(FOR_EVER)), ttl }
    }
}

impl Place for LastingPlace {
    async fn turn(&mut self) -> Result<Turn> {
        Ok(match self.place.turn().await? {
            Turn::Held(mut grant) => {
                grant.valid_for = self.ttl;
                Turn::Held(grant)
            }
            Turn::Wait { ahead, .. } => Turn::wait(self.ttl / 3, ahead),
        })
    }

    async fn changed(&mut self) {
        self.place.changed().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Ok(match self.place.renew().await? {
            Renewal::Held { wanted, .. } => Renewal::held(self.ttl, wanted),
            Renewal::Lost => Renewal::Lost,
        })
    }

    async fn leave(&mut self) -> Result<()> {
        self.place.leave().await
    }
}
