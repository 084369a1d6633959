//! The way to the ensemble: a client with a session, by whichever server answers first.

use std::time::Duration;

use lockkeeper_core::{Clock, Moment};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, Connector, CreateMode, Error};

use crate::alone::{self, Unopened};
use crate::options::ZooKeeperOptions;
use crate::{fault, tls};

/// How often the path is looked for on a connection that breaks.
const PATH_TRIES: u32 = 3;

/// A client with a new session.
pub(crate) struct Opened {
    pub(crate) client: Client,
    /// When the session was asked for.
    pub(crate) asked_at: Moment,
}

/// After how long a silent server is left for another.
///
/// The client tries the servers in random order, so the one that keeps silent may come first again. Its own choice, two
/// fifths of a session, would then cost the session; after a sixth there is time for two silent ones of five. It also
/// pings when it has been idle for half of this, so that nothing on the way forgets the connection.
fn silence_max(session: Duration) -> Duration {
    (session / 6).clamp(Duration::from_millis(750), Duration::from_millis(2500)).min(session * 2 / 5)
}

/// What is asked for.
#[derive(Clone)]
struct Wish {
    connector: Connector,
    options: ZooKeeperOptions,
    clock: Clock,
    timeout: Duration,
    /// Several servers are named, so it is an ensemble.
    several: bool,
}

/// Open a session, but not with a server that stands alone although several are named: the others may keep the same locks.
pub(crate) async fn open(
    connector: Connector,
    options: ZooKeeperOptions,
    clock: Clock,
    timeout: Duration,
) -> Result<Opened, Unopened> {
    let several = 1 < options.servers.len();
    let mut wish = Wish { connector, options, clock, timeout, several };
    let (opened, alone) = tokio::join!(try_all(&wish), alone::among(&wish.options, &wish.clock));
    if alone.is_empty() {
        return opened;
    }
    // The session may be with one of these.
    drop(opened);
    wish.options.servers.retain(|it| !alone.contains(it));
    if wish.options.servers.is_empty() {
        return Err(Unopened::Alone(alone));
    }
    try_all(&wish).await.map_err(|error| if error.is_transient() { Unopened::Alone(alone) } else { error })
}

/// Whichever try comes first. One try asks one server after the other, in random order, and a server that is frozen holds it
/// up. So another one is begun after a while, until there are more than servers.
async fn try_all(wish: &Wish) -> Result<Opened, Unopened> {
    let Wish { options, clock, several, .. } = wish;
    let tries_max = if *several { options.servers.len() + 1 } else { 1 };
    let mut tries = JoinSet::new();
    let mut begun = 0;
    let give_up = async {
        match options.connect_timeout {
            Some(it) => clock.sleep(it).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(give_up);
    loop {
        if begun < tries_max {
            begun += 1;
            tries.spawn(try_once(wish.clone()));
        }
        let pause = async {
            if begun < tries_max {
                clock.sleep(options.timeout / 6).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            Some(done) = tries.join_next() => match done.unwrap_or(Err(Error::ClientClosed.into())) {
                Err(error) if error.is_transient() && !tries.is_empty() => {}
                // The next one may come upon another server.
                Err(Unopened::Alone(_)) if begun < tries_max => {}
                done => return done,
            },
            () = pause => {}
            () = &mut give_up => return Err(Error::Timeout.into()),
        }
    }
}

async fn try_once(wish: Wish) -> Result<Opened, Unopened> {
    let Wish { connector, options, clock, timeout, several } = wish;
    let asked_at = clock.now();
    let mut connector = connector.with_session_timeout(timeout).with_connection_timeout(silence_max(timeout));
    if let (Some(user), Some(password)) = (&options.user, &options.password) {
        connector = connector.with_auth("digest", format!("{user}:{}", password.reveal()).as_bytes());
    }
    let client = tls::connect(connector, &options).await?;
    if several {
        alone::refuse(&client).await?;
    }
    let mut made = make_path(&client, &options.path).await;
    // A busy server may lose the connection, but not the session.
    for _ in 1..PATH_TRIES {
        match &made {
            Err(error) if fault::is_transient(error) && !fault::is_session_over(error) => {}
            _ => break,
        }
        made = make_path(&client, &options.path).await;
    }
    made?;
    Ok(Opened { client, asked_at })
}

/// Looking comes first: whoever may use the path need not be allowed to make it.
async fn make_path(client: &Client, path: &str) -> Result<(), Error> {
    if client.check_stat(path).await?.is_none() {
        client.mkdir(path, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    }
    Ok(())
}
