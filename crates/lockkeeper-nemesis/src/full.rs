//! No room left on a server, for connections or for anything that is to be kept, and room again.

use std::time::Duration;

use lockkeeper::spi::Clock;
use lockkeeper_servers::{EtcdCluster, Postgres, RespClient, Value};
use lockkeeper_torture::Trouble;

use crate::site::Servers;

/// No room for another connection.
pub(crate) async fn of_connections(servers: &Servers, span: Duration) -> Result<(), Trouble> {
    let Servers::Redis(server) = servers else { return Ok(()) };
    // The only connection that is left, so that somebody can put an end to this.
    let mut own = server.client().await?;
    let before = own.command(&["CONFIG", "GET", "maxclients"]).await?;
    let before = before.items().get(1).map(Value::text).ok_or("no maxclients")?;
    own.command(&["CONFIG", "SET", "maxclients", "1"]).await?;
    for kind in ["normal", "pubsub"] {
        own.command(&["CLIENT", "KILL", "SKIPME", "yes", "TYPE", kind]).await?;
    }
    Clock::boot().sleep(span).await;
    own.command(&["CONFIG", "SET", "maxclients", &before]).await?;
    Ok(())
}

/// No room for anything new.
pub(crate) async fn of_room(servers: &Servers, span: Duration) -> Result<(), Trouble> {
    match servers {
        Servers::Redis(_) | Servers::Redlock(_) | Servers::Sentinel(_) | Servers::Cluster(_) => {
            room_of_memory(servers, false).await?;
            Clock::boot().sleep(span).await;
            room_of_memory(servers, true).await
        }
        Servers::Etcd(all) => quota(all, span).await,
        Servers::Postgres(it) => files(it, span).await,
        _ => Ok(()),
    }
}

/// A Redis server keeps everything in its memory.
async fn room_of_memory(servers: &Servers, is_there: bool) -> Result<(), Trouble> {
    for node in servers.nodes() {
        let mut own = RespClient::connect(node.port()).await?;
        own.command(&["CONFIG", "SET", "maxmemory", if is_there { "0" } else { "1" }]).await?;
    }
    Ok(())
}

/// The alarm by which etcd refuses all writes but deletions when its quota is used up. It may also be raised by hand.
async fn quota(servers: &EtcdCluster, span: Duration) -> Result<(), Trouble> {
    let node = servers.nodes().first().ok_or("no servers")?;
    let alarm = async |action: &str| {
        let words = format!(r#"{{"action":"{action}","memberID":"0","alarm":"NOSPACE"}}"#);
        node.post("/v3/maintenance/alarm", &words).await
    };
    alarm("ACTIVATE").await?;
    Clock::boot().sleep(span).await;
    alarm("DEACTIVATE").await?;
    Ok(())
}

/// Rows of nobody's line, each of so many bytes.
fn fill(rows: u32, bytes: u32) -> String {
    format!(
        "INSERT INTO lockkeeper.lockkeeper_claim SELECT sha256('filler'), nextval('filler'), '', false, 0, \
         9000000000000000000, 0, 1, 1, repeat('x', {bytes}), 0, NULL, NULL, NULL FROM generate_series(1, {rows})"
    )
}

/// No file of the server may grow. The table of claims is made larger before than a segment of the log, which must not hit
/// the limit: the server would end itself, and that is another fault.
async fn files(server: &Postgres, span: Duration) -> Result<(), Trouble> {
    let table = "lockkeeper.lockkeeper_claim";
    server
        .sql(&format!(
            "CREATE SEQUENCE filler; ALTER TABLE {table} SET (autovacuum_enabled = off), \
             ALTER COLUMN host SET STORAGE PLAIN; {}",
            fill(10_000, 1900)
        ))
        .await?;
    let size: u64 = server.sql(&format!("SELECT pg_relation_size('{table}')")).await?.parse()?;
    limit(server, Some(size + 100)).await?;
    let clock = Clock::boot();
    let until = clock.now().after(span);
    // What becomes free is taken, so that there is as good as no room for anybody else.
    while clock.now() < until {
        for bytes in [1900, 500, 100, 1] {
            drop(server.sql(&fill(1, bytes)).await);
        }
    }
    limit(server, None).await?;
    server
        .sql(&format!(
            "DELETE FROM {table} WHERE lock = sha256('filler'); DROP SEQUENCE filler; \
             ALTER TABLE {table} RESET (autovacuum_enabled), ALTER COLUMN host SET STORAGE EXTENDED"
        ))
        .await?;
    server.sql(&format!("VACUUM {table}")).await?;
    Ok(())
}

/// For all sessions: they have the limit of when they began.
async fn limit(server: &Postgres, bytes: Option<u64>) -> Result<(), Trouble> {
    server.limit_files(bytes).await?;
    server
        .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockkeeper_servers::{Redis, RedisOptions};

    use super::*;

    #[tokio::test]
    async fn a_full_redis_takes_nothing_and_then_everything_again() -> Result<(), Trouble> {
        let server = Redis::start(RedisOptions::default()).await?;
        let mut client = server.client().await?;
        let servers = Servers::Redis(server);
        room_of_memory(&servers, false).await?;
        let refused = client.command(&["SET", "k", "v"]).await.err().map(|it| it.to_string());
        assert!(refused.is_some_and(|it| it.contains("OOM")));
        room_of_memory(&servers, true).await?;
        client.command(&["SET", "k", "v"]).await?;
        Ok(())
    }
}
