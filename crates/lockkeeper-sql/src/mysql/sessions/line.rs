//! One session of MySQL or MariaDB whose timeout is the lease of its named locks, and what is asked on it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{ClaimId, Moment};
use mysql_async::Row;
use tokio::runtime::Handle;

use super::super::NAME;
use super::super::fault::{Result, Trouble};
use super::Site;
use super::join::{Epoch, NOW, RANGE, hash_of, join, number_of, odd};
use super::names::lock_name;
use super::tether::{Answer as Rows, Tether};
use crate::name::NameHash;
use crate::sessions::{Beat, Claimed, Conversation, Opened, Taken};

/// How often a session that holds something asks whether the server is there: the driver does not notice that a
/// connection has ended while nobody uses it.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// The longest wait that the server bears, in seconds.
const FOR_EVER: u32 = 31_536_000;

/// An open session, and how its fences are counted.
pub(crate) struct Line {
    tether: Tether,
    site: Arc<Site>,
    epoch: Epoch,
    /// No fence above it is given before more are reserved.
    ceiling: Mutex<i64>,
}

type Answer<T> = Result<(T, Moment)>;

impl Line {
    /// Run a statement that answers soon. Whatever stands behind an unanswered one is not answered, either.
    pub(super) async fn ask_in_time(&self, sql: String) -> Result<Rows> {
        let asked = self.site.in_time(self.tether.ask(sql)).await;
        if matches!(asked, Err(Trouble::Silent)) {
            self.tether.end();
        }
        asked
    }

    async fn run(&self, sql: String) -> Answer<()> {
        Ok(((), self.tether.ask(sql).await?.1))
    }

    /// The counter of a fence, from what the server counted while the lock was ours. If so many have been given that it is
    /// above what is reserved on disk, more are reserved first.
    async fn counter(&self, uuid: u64) -> Result<u64> {
        let counter = self.epoch.counter(uuid).ok_or_else(odd)?;
        if *locked(&self.ceiling) <= counter {
            // Most often somebody else has done it, and nothing is written.
            let reserve = format!(
                "UPDATE lockkeeper_session_store SET ceiling = {} WHERE one = 1 AND ceiling <= {counter}",
                counter.saturating_add(RANGE)
            );
            self.ask_in_time(reserve).await?;
            let (rows, _) =
                self.ask_in_time("SELECT ceiling FROM lockkeeper_session_store WHERE one = 1".into()).await?;
            let ceiling = rows.first().and_then(|it| it.get_opt(0)?.ok()).ok_or_else(odd)?;
            if ceiling <= counter {
                return Err(odd());
            }
            *locked(&self.ceiling) = ceiling;
        }
        u64::try_from(counter).map_err(|_| odd())
    }

    /// Whether the other session is in the server's list, in this state.
    async fn finds(&self, other: &Self, state: &str) -> Answer<bool> {
        let sql =
            format!("SELECT 1 FROM information_schema.processlist WHERE id = {}{state}", other.tether.number);
        let (rows, sent_at) = self.tether.ask(sql).await?;
        Ok((!rows.is_empty(), sent_at))
    }
}

impl Conversation for Line {
    type Site = Site;
    type Trouble = Trouble;
    type Name = String;
    type Mark = NameHash;

    const NAME: &'static str = NAME;
    const LOOK: Option<Duration> = Some(LOOK);

    /// The server counts whole seconds, so it is rounded up.
    fn ttl(ttl: Duration) -> Duration {
        Duration::from_secs(ttl.as_secs() + u64::from(0 < ttl.subsec_nanos()))
    }

    fn name(site: &Site, lock: &NameHash) -> String {
        lock_name(&site.id, lock)
    }

    async fn open(site: &Arc<Site>, ttl: Duration, _waits: bool) -> Result<Opened<Self>> {
        let runtime = Handle::try_current().map_err(|_| Trouble::NoRuntime)?;
        let conn = site.dial().await?;
        let joined = site.in_time(join(conn, &site.id, ttl.as_secs(), &site.clock)).await?;
        let wire = Line {
            tether: Tether::start(joined.conn, &runtime, site.clock.clone()),
            site: site.clone(),
            epoch: joined.epoch,
            ceiling: Mutex::new(joined.ceiling),
        };
        Ok(Opened { wire, quiet: joined.quiet, server: joined.server, sent_at: joined.sent_at })
    }

    fn is_closed(&self) -> bool {
        self.tether.is_closed()
    }

    fn end(&self) {
        self.tether.end();
    }

    fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut over = self.tether.over();
        async move { drop(over.wait_for(|it| *it).await) }
    }

    async fn take(&self, claimed: &Claimed<Self>, wait: bool) -> Answer<Option<Taken<NameHash>>> {
        let (rows, sent_at) = self.tether.ask(take_sql(&claimed.name, wait)).await?;
        let word: Option<String> = rows.first().and_then(|it| it.get_opt(0)?.ok());
        let word = word.ok_or_else(odd)?;
        let mut words = word.split(' ');
        let uuid: u64 = words.next().and_then(|it| it.parse().ok()).ok_or_else(odd)?;
        if uuid == 0 {
            return Ok((None, sent_at));
        }
        let server = words.next().map_or(Ok(0), number_of)?;
        let waited = words.next() == Some("1");
        let counter = self.counter(uuid).await?;
        Ok((Some(Taken { counter, mark: claimed.lock, server, waited }), sent_at))
    }

    async fn release(&self, claimed: &Claimed<Self>, _mark: NameHash) -> Answer<()> {
        self.run(release_sql(&claimed.name)).await
    }

    async fn undo(&self, claimed: &Claimed<Self>) -> Answer<()> {
        let name = &claimed.name;
        self.run(format!("SELECT IF(IS_USED_LOCK('{name}') = CONNECTION_ID(), RELEASE_LOCK('{name}'), 0)"))
            .await
    }

    async fn give_up(&self, lock: NameHash) -> Answer<()> {
        self.run(release_sql(&lock_name(&self.site.id, &lock))).await
    }

    async fn beat(&self) -> Answer<Beat<NameHash>> {
        let (rows, sent_at) = self.tether.ask(beat_sql()).await?;
        Ok((read(&rows)?, sent_at))
    }

    async fn look(&self) -> Answer<()> {
        Ok(((), self.tether.ping().await?))
    }

    /// Write down who holds and who waits.
    async fn tend(&self) {
        self.site.register.write(self, self.site.clock.now()).await;
    }

    async fn stands(&self, other: &Self) -> Answer<bool> {
        self.finds(other, " AND state = 'User lock'").await
    }

    async fn end_other(&self, other: &Self) -> Answer<bool> {
        let sent_at = self.site.clock.now();
        match self.tether.ask(format!("KILL {}", other.tether.number)).await {
            // It may have ended meanwhile: then there is no such session.
            Err(trouble) if !trouble.is_answer() => Err(trouble),
            _ => Ok((false, sent_at)),
        }
    }

    async fn lives(&self, other: &Self) -> Answer<bool> {
        self.finds(other, "").await
    }

    fn stands_here(&self, claimed: &Arc<Claimed<Self>>, counter: u64, since: i64) {
        self.site.register.stands(claimed, self.tether.number, counter, since, self.site.clock.now());
    }

    fn left(site: &Site, id: ClaimId) {
        site.register.left(id);
    }
}

/// What is counted up when the lock is ours, or 0. For one who waits with what the server's clock shows then, and whether
/// somebody had it: nobody but the server knows, as an answer may be long on its way. It is looked before: to try and to wait
/// would be two places in its line, and each newcomer is compared with all who stand there.
fn take_sql(name: &str, wait: bool) -> String {
    if !wait {
        return format!("SELECT IF(GET_LOCK('{name}', 0) = 1, CAST(UUID_SHORT() AS CHAR), '0')");
    }
    let take = |waited: u8| {
        format!("IF(GET_LOCK('{name}', {FOR_EVER}) = 1, CONCAT_WS(' ', UUID_SHORT(), {NOW}, {waited}), '0')")
    };
    format!("SELECT IF(IS_FREE_LOCK('{name}'), {}, {})", take(0), take(1))
}

fn release_sql(name: &str) -> String {
    format!("DO RELEASE_LOCK('{name}')")
}

/// Rows of the kinds `c` the server's clock, `w` a lock that is waited for, `b` one that this session shall give back.
fn beat_sql() -> String {
    format!(
        "SELECT 'c', CAST({NOW} AS CHAR) \
         UNION ALL SELECT 'w', HEX(`lock`) FROM lockkeeper_session_claim WHERE counter = 0 \
         UNION ALL SELECT 'b', HEX(`lock`) FROM lockkeeper_session_broken WHERE conn = CONNECTION_ID()"
    )
}

/// What a beat was answered.
fn read(rows: &[Row]) -> Result<Beat<NameHash>> {
    let (mut server, mut wanted, mut broken) = (None, Vec::new(), Vec::new());
    for row in rows {
        let word = |at: usize| row.get_opt::<String, _>(at).and_then(std::result::Result::ok);
        let (kind, value) = word(0).zip(word(1)).ok_or_else(odd)?;
        match kind.as_str() {
            "c" => server = Some(number_of(&value)?),
            "w" => wanted.push(hash_of(&value).ok_or_else(odd)?),
            _ => broken.push(hash_of(&value).ok_or_else(odd)?),
        }
    }
    Ok(Beat { server: server.ok_or_else(odd)?, wanted, broken })
}
