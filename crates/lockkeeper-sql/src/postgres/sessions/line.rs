//! One session of PostgreSQL whose timeout is the lease of its advisory locks, and what is asked on it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Label, Moment};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::NAME;
use super::super::doubt::Identity;
use super::super::fault::{Result, Trouble};
use super::super::session::{Ears, Param, Session};
use super::Site;
use super::numbers::{Known, Numbers};
use crate::name::{NameHash, micros_up, printable, span};
use crate::sessions::{Beat, Claimed, Conversation, Opened, Taken};

/// For how long a name keeps its number after it was first used, if nobody holds it then.
const NAME_IDLE: Duration = Duration::from_secs(3600);

/// Younger than this no name is removed, also if the server's clock was set back by a moment.
pub(super) const NAME_FRESH: Duration = Duration::from_secs(3540);

/// The most names that one statement removes.
const NAMES_MOST: i64 = 100;

/// An open session, the server's process behind it, and the first of the two numbers of its locks.
pub(crate) struct Line {
    session: Session,
    identity: Identity,
    site: Arc<Site>,
    ears: Arc<Ears>,
    class: i32,
    numbers: Numbers,
    cleaned_at: Mutex<Moment>,
}

type Answer<T> = Result<(T, Moment)>;

impl Line {
    async fn ask(&self, sql: &str, params: &[Param<'_>]) -> Answer<Vec<Row>> {
        self.session.query(sql, params).await.map_err(Trouble::from)
    }

    /// Ask something of another session.
    async fn ask_of(&self, sql: &str, other: &Self) -> Answer<bool> {
        let Identity { pid, began } = &other.identity;
        let (rows, sent_at) = self.ask(sql, &[(pid, Type::INT8), (began, Type::TEXT)]).await?;
        Ok((rows.first().is_some_and(|it| matches!(it.try_get(0), Ok(Some(true)))), sent_at))
    }

    /// The number of a name, if that is sure for long enough. One who waits looks before: the answer to a wait may be late.
    async fn known(&self, lock: NameHash, wait: bool) -> Result<Option<Known>> {
        let (now, known) = (self.site.clock.now(), self.numbers.get(&lock));
        let lasts = known.filter(|it| it.lasts(now, wait));
        if lasts.is_some() || !wait || known.is_some_and(|it| it.is_seen(now)) {
            return Ok(lasts);
        }
        let (rows, sent_at) = self.ask(&self.site.sql.find, &[(&lock.as_slice(), Type::BYTEA)]).await?;
        if let Some(row) = rows.first() {
            let [number, born, server] = row.try_get::<_, Vec<i64>>(0)?.try_into().map_err(|_| odd())?;
            self.numbers.learn(lock, number, born, server, sent_at);
        }
        Ok(self.numbers.get(&lock).filter(|it| it.lasts(now, wait)))
    }

    /// Take a lock whose number is known. `None` if that must be looked at again.
    async fn take_known(&self, known: &Known, wait: bool) -> Result<Option<(Option<Taken<i64>>, Moment)>> {
        let params: [Param<'_>; 3] =
            [(&self.class, Type::INT4), (&known.number, Type::INT4), (&known.sure_until, Type::FLOAT8)];
        let sql = if wait { &self.site.sql.wait_known } else { &self.site.sql.take_known };
        let (rows, sent_at) = self.ask(sql, &params).await?;
        let [counter, mark, server, waited] = if wait {
            numbers(&rows)?.try_into().map_err(|_| odd())?
        } else {
            [rows.first().ok_or_else(odd)?.try_get(0)?, i64::from(known.number), 0, 0]
        };
        if counter < 0 {
            return Ok(None);
        }
        Ok(Some((taken(counter, mark, server, waited)?, sent_at)))
    }

    /// Take a lock by its name, which is given a number if it has none.
    async fn take_by_name(
        &self,
        claimed: &Claimed<Self>,
        wait: bool,
        plain: bool,
    ) -> Answer<Option<Taken<i64>>> {
        let (lock, name, label) = (claimed.lock.as_slice(), claimed.claim.key.as_str(), &claimed.claim.label);
        let (owner, note) = (label.owner.as_deref().map(printable), label.note.as_deref().map(printable));
        let params: [Param<'_>; 6] = [
            (&self.class, Type::INT4),
            (&lock, Type::BYTEA),
            (&name, Type::TEXT),
            (&wait, Type::BOOL),
            (&owner, Type::TEXT),
            (&note, Type::TEXT),
        ];
        let (rows, sent_at) = if wait || !plain {
            self.ask(&self.site.sql.take, &params).await?
        } else {
            self.ask(&self.site.sql.take_free, &params[..3]).await?
        };
        match numbers(&rows)?[..] {
            [counter, number, server, waited] => Ok((taken(counter, number, server, waited)?, sent_at)),
            [counter, number, server, waited, born] => {
                self.numbers.learn(claimed.lock, number, born, server, sent_at);
                Ok((taken(counter, number, server, waited)?, sent_at))
            }
            _ => Err(odd()),
        }
    }
}

impl Conversation for Line {
    type Site = Site;
    type Trouble = Trouble;
    type Name = ();
    /// The name's number.
    type Mark = i64;

    const NAME: &'static str = NAME;
    const LOOK: Option<Duration> = None;

    /// Rounded up to two digits, so that ttls that are reckoned, each a little different, share sessions.
    fn ttl(ttl: Duration) -> Duration {
        let millis = u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX / 2);
        let step = 10_u64.pow(millis.max(1).ilog10().saturating_sub(1));
        Duration::from_millis(millis.div_ceil(step) * step)
    }

    fn name(_site: &Site, _lock: &NameHash) {}

    async fn open(site: &Arc<Site>, ttl: Duration, waits: bool) -> Result<Opened<Self>> {
        let ears = Ears::new(Arc::default());
        let session = site.dial(Some(&ears)).await?;
        let Some(identity) = session.identity.clone() else { return Err(odd()) };
        let millis = ttl.as_nanos().div_ceil(1_000_000).to_string();
        let answer_within = site.options.common.timeout.as_millis().clamp(1, 2_000_000_000).to_string();
        let limit = if waits { "0" } else { answer_within.as_str() };
        let set: [Param<'_>; 2] = [(&millis, Type::TEXT), (&limit, Type::TEXT)];
        site.in_time(session.query(&site.sql.set, &set)).await?;
        let label = Label::of_this_process();
        let (host, pid) = (printable(&label.host), i64::from(label.pid));
        let join: [Param<'_>; 3] = [(&micros_up(ttl), Type::INT8), (&host, Type::TEXT), (&pid, Type::INT8)];
        let (rows, sent_at) = site.in_time(session.query(&site.sql.join, &join)).await?;
        let told = numbers(&rows)?;
        let [class, quiet, server, ..] = told[..] else { return Err(odd()) };
        let class = i32::try_from(class).map_err(|_| odd())?;
        let cleaned_at = Mutex::new(site.clock.now());
        let wire = Line {
            session,
            identity,
            site: site.clone(),
            ears,
            class,
            numbers: Numbers::default(),
            cleaned_at,
        };
        Ok(Opened { wire, quiet: span(quiet), server, sent_at })
    }

    fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    fn end(&self) {
        self.session.end();
    }

    fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let ears = self.ears.clone();
        async move { ears.ended.notified().await }
    }

    async fn take(&self, claimed: &Claimed<Self>, wait: bool) -> Answer<Option<Taken<i64>>> {
        let label = &claimed.claim.label;
        let plain = label.owner.is_none() && label.note.is_none();
        if plain && let Some(known) = self.known(claimed.lock, wait).await? {
            if let Some(answer) = self.take_known(&known, wait).await? {
                return Ok(answer);
            }
            self.numbers.forget(&claimed.lock);
        }
        self.take_by_name(claimed, wait, plain).await
    }

    async fn release(&self, claimed: &Claimed<Self>, number: i64) -> Answer<()> {
        // Whether owner or note are worth a row.
        let label = &claimed.claim.label;
        if label.owner.is_some() || label.note.is_some() {
            return self.give_up(number).await;
        }
        let narrow = i32::try_from(number).map_err(|_| odd())?;
        let params: [Param<'_>; 2] = [(&self.class, Type::INT4), (&narrow, Type::INT4)];
        Ok(((), self.ask(self.site.sql.leave, &params).await?.1))
    }

    async fn undo(&self, claimed: &Claimed<Self>) -> Answer<()> {
        let lock = claimed.lock.as_slice();
        let params: [Param<'_>; 2] = [(&self.class, Type::INT4), (&lock, Type::BYTEA)];
        Ok(((), self.ask(&self.site.sql.undo, &params).await?.1))
    }

    async fn give_up(&self, number: i64) -> Answer<()> {
        let params: [Param<'_>; 2] = [(&self.class, Type::INT4), (&number, Type::INT8)];
        Ok(((), self.ask(&self.site.sql.leave_noted, &params).await?.1))
    }

    async fn beat(&self) -> Answer<Beat<i64>> {
        let (rows, sent_at) = self.ask(&self.site.sql.beat, &[(&self.class, Type::INT4)]).await?;
        let told = numbers(&rows)?;
        let [server, wanted, rest @ ..] = &told[..] else { return Err(odd()) };
        self.numbers.look_at_the_clock(*server, sent_at);
        let (wanted, broken) = rest.split_at(usize::try_from(*wanted).unwrap_or(0).min(rest.len()));
        Ok((Beat { server: *server, wanted: wanted.to_vec(), broken: broken.to_vec() }, sent_at))
    }

    /// The driver hears it when the connection ends.
    async fn look(&self) -> Answer<()> {
        Ok(((), self.site.clock.now()))
    }

    /// Remove names that nobody has used for long.
    async fn tend(&self) {
        let now = self.site.clock.now();
        if now - *locked(&self.cleaned_at) < self.site.options.common.clean_every {
            return;
        }
        *locked(&self.cleaned_at) = now;
        // Beside the beats, which wait for nobody.
        let site = self.site.clone();
        tokio::spawn(async move { site.look().await });
        let params: [Param<'_>; 3] =
            [(&self.class, Type::INT4), (&micros_up(NAME_IDLE), Type::INT8), (&NAMES_MOST, Type::INT8)];
        // A fault here is met again by the next verb, which can tell it.
        let _ = self.site.in_time(self.ask(&self.site.sql.clean, &params)).await;
    }

    async fn stands(&self, other: &Self) -> Answer<bool> {
        self.ask_of(self.site.sql.stands, other).await
    }

    /// The server answers when it is gone, or after a while.
    async fn end_other(&self, other: &Self) -> Answer<bool> {
        let (_, sent_at) = self.ask_of(self.site.sql.end, other).await?;
        Ok((true, sent_at))
    }

    async fn lives(&self, other: &Self) -> Answer<bool> {
        self.ask_of(self.site.sql.lives, other).await
    }
}

/// What was taken, if it was.
fn taken(counter: i64, mark: i64, server: i64, waited: i64) -> Result<Option<Taken<i64>>> {
    let counter = u64::try_from(counter).map_err(|_| odd())?;
    Ok((counter != 0).then_some(Taken { counter, mark, server, waited: waited != 0 }))
}

/// The numbers in the only row.
fn numbers(rows: &[Row]) -> Result<Vec<i64>> {
    let numbers = rows.first().map(|it| it.try_get(0)).transpose()?;
    numbers.ok_or_else(odd)
}

fn odd() -> Trouble {
    Trouble::Refused("a function of Lockkeeper gave an answer that this version does not understand".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_that_differ_little_share_a_session_that_lasts_no_shorter() {
        let rounded = |millis: u64| Line::ttl(Duration::from_millis(millis)).as_millis();
        for exact in [1, 50, 99, 100, 250, 1000, 1500, 30_000, 90_000, 3_600_000] {
            assert_eq!(rounded(exact), u128::from(exact));
        }
        assert_eq!((rounded(101), rounded(10_001), rounded(10_999)), (110, 11_000, 11_000));
        assert_eq!(Line::ttl(Duration::from_nanos(50_000_001)), Duration::from_millis(51));
        // The longest that the server can be told.
        assert!(Line::ttl(super::super::TTL_MAX).as_millis() <= i32::MAX.unsigned_abs().into());
    }
}
