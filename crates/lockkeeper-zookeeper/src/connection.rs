//! The way to the ensemble: a client with a session, by whichever server answers first.

use std::time::Duration;

use lockkeeper_core::{Clock, Moment};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, Connector, CreateMode, Error};

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

/// Open a session; whichever try comes first. One try asks one server after the other, in random order, and a server
/// that is frozen holds it up. So another one is begun after a while, until there are more than servers.
pub(crate) async fn open(
    connector: Connector,
    options: ZooKeeperOptions,
    clock: Clock,
    asked: Duration,
) -> Result<Opened, Error> {
    let tries_max = if options.servers.len() == 1 { 1 } else { options.servers.len() + 1 };
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
            tries.spawn(try_once(connector.clone(), options.clone(), clock.clone(), asked));
        }
        let pause = async {
            if begun < tries_max {
                clock.sleep(options.timeout / 6).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            Some(done) = tries.join_next() => match done.unwrap_or(Err(Error::ClientClosed)) {
                Err(error) if fault::is_transient(&error) && !tries.is_empty() => {}
                done => return done,
            },
            () = pause => {}
            () = &mut give_up => return Err(Error::Timeout),
        }
    }
}

async fn try_once(
    connector: Connector,
    options: ZooKeeperOptions,
    clock: Clock,
    asked: Duration,
) -> Result<Opened, Error> {
    let asked_at = clock.now();
    let mut connector = connector.with_session_timeout(asked).with_connection_timeout(silence_max(asked));
    if let (Some(user), Some(password)) = (&options.user, &options.password) {
        connector = connector.with_auth("digest", format!("{user}:{}", password.reveal()).as_bytes());
    }
    let client = tls::connect(connector, &options).await?;
    let mut made = make_path(&client, &options.path).await;
    // A busy server may lose the connection, but not the session.
    for _ in 1..PATH_TRIES {
        match &made {
            Err(error) if fault::is_transient(error) && !fault::is_session_over(error) => {}
            _ => break,
        }
        made = make_path(&client, &options.path).await;
    }
    made.map(|()| Opened { client, asked_at })
}

/// Looking comes first: whoever may use the path need not be allowed to make it.
async fn make_path(client: &Client, path: &str) -> Result<(), Error> {
    if client.check_stat(path).await?.is_none() {
        client.mkdir(path, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    }
    Ok(())
}
