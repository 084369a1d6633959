//! Meeting participants: each is looked at, and noted in the log before its first branch.

use futures_util::future::join_all;
use lockkeeper_core::kit::locked;

use crate::error::{Error, Result};
use crate::log::ParticipantRecord;
use crate::observe::Point;
use crate::office::Desk;
use crate::participant::{ANSWER_MAX, Participant, Session, timed};
use crate::recover::Left;

/// What a participant said of itself, and the session in which it did.
struct Asked {
    identity: String,
    at_home: bool,
    session: Session,
}

impl Desk {
    /// A session at a participant that is the database it says it is. On the office's own runtime.
    pub(crate) async fn connect(&self, name: &str) -> Result<Session> {
        let participant = self.known(name).await?;
        let opened = self.handle.spawn(async move { participant.connect().await }).await;
        opened.map_err(|it| Error::unavailable("the office's runtime", it))?
    }

    /// A participant that was met, now or before.
    pub(crate) async fn known(&self, name: &str) -> Result<Participant> {
        let participant = self.participant(name)?;
        if !self.is_met(name) {
            self.note(name, &participant, self.ask(name, &participant).await?).await?;
        }
        Ok(participant)
    }

    pub(crate) fn is_met(&self, name: &str) -> bool {
        locked(&self.met).contains(name)
    }

    /// A session for recovery, which may go on with the one in which the participant was met.
    pub(crate) async fn connect_to_recover(&self, name: &str) -> Result<Session> {
        let met = locked(&self.fresh).remove(name);
        if let Some(session) = met {
            return Ok(session);
        }
        let participant = self.participant(name)?;
        if self.is_met(name) {
            return self.connect(name).await;
        }
        let asked = self.ask(name, &participant).await?;
        self.note(name, &participant, asked).await
    }

    fn participant(&self, name: &str) -> Result<Participant> {
        let unknown = || Error::invalid(format!("the participant {name:?} is not set up here"));
        self.participants.get(name).cloned().ok_or_else(unknown)
    }

    /// Look at a participant, and make our tables there unless it is another database than the log knows by this name.
    async fn ask(&self, name: &str, participant: &Participant) -> Result<Asked> {
        let noted = self.log.participants().await?.into_iter().find(|it| it.name == name);
        let (asked, server) = (participant.clone(), self.log.server().cloned());
        let met = self.handle.spawn(async move {
            let mut session = asked.connect().await?;
            let at_home = match server.filter(|it| it.dialect == asked.dialect()) {
                Some(server) => server.is_seen_by(&mut session).await?,
                None => false,
            };
            if let Some(noted) = noted {
                let found = timed(ANSWER_MAX, session.identity()).await.map_err(|it| asked.trouble(&it))?;
                if found.as_deref() != Some(noted.identity.as_str()) {
                    return Ok(Asked { identity: found.unwrap_or_default(), at_home, session });
                }
            }
            let identity = asked.meet(&mut session, at_home).await?;
            Ok::<_, Error>(Asked { identity, at_home, session })
        });
        met.await.map_err(|it| Error::unavailable("the office's runtime", it))?
    }

    /// Note a participant before its first branch, if it is the one that the log knows by this name.
    async fn note(&self, name: &str, participant: &Participant, asked: Asked) -> Result<Session> {
        let Asked { identity, at_home, session } = asked;
        let (kind, place) = (participant.kind().to_owned(), participant.place());
        let same =
            self.log.participants().await?.into_iter().find(|it| it.identity == identity && it.name != name);
        if let Some(same) = same.filter(|it| self.participants.contains_key(&it.name)) {
            return Err(Error::invalid(format!(
                "the participants {:?} and {name:?} are one database; put the work of both into one branch",
                same.name
            )));
        }
        let record = ParticipantRecord { name: name.to_owned(), kind, place, identity };
        let noted = self.log.note(record.clone()).await?;
        if (&noted.identity, &noted.kind) != (&record.identity, &record.kind) {
            return Err(Error::invalid(format!(
                "the participant {name:?} at {} is not the database that the log knows by this name, which was at {}; nothing was touched. Give a new database a new name",
                record.place, noted.place
            )));
        }
        if at_home {
            let _ = self.home.set(name.to_owned());
        }
        self.observer.tell(Point::ParticipantNoted, None, Some(name));
        locked(&self.met).insert(name.to_owned());
        Ok(session)
    }

    /// Participants that the log knows and that are not set up here: what is prepared there nobody has asked.
    pub(crate) async fn unnamed(&self) -> Result<Vec<Left>> {
        let known = self.log.participants().await?.into_iter();
        let missing = known.filter(|it| !self.participants.contains_key(&it.name));
        let left = |it: ParticipantRecord| {
            let why = format!("the log knows it at {}, and it is not named here", it.place);
            Left { id: None, participant: it.name, why }
        };
        Ok(missing.map(left).collect())
    }

    /// Look at all participants at once, and note one after the other: two may be one database.
    pub(crate) async fn meet_all(&self) -> Result<()> {
        let known: Vec<String> = self.log.participants().await?.into_iter().map(|it| it.name).collect();
        let asked = join_all(self.participants.iter().map(|(name, it)| self.ask(name, it))).await;
        for ((name, participant), asked) in self.participants.iter().zip(asked) {
            let noted = match asked {
                Ok(asked) => self.note(name, participant, asked).await,
                Err(error) => Err(error),
            };
            match noted {
                Ok(session) => drop(locked(&self.fresh).insert(name.clone(), session)),
                Err(Error::Unavailable { .. }) if known.contains(name) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
