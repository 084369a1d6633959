//! The doctor: which settings of this store endanger locks, with what consequence and what remedy.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Place as _, Result, Turn};
use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::inspect::Finding;
use lockkeeper_core::{Claim, ClaimId, Clock, Key, Label};
use redis::{Cmd, Value};

use crate::dial::field;
use crate::fault;
use crate::options::{Deployment, Host, RedisOptions, Replicas};
use crate::place::RedisPlace;
use crate::store::Store;

const EXAMINING: &str = "examining the store";

/// Clocks that differ by more are worth a word.
const OFFSET_MAX: Duration = Duration::from_secs(1);

/// How long the doctor waits for a wake-up that should take a round trip.
const WAKE_MAX: Duration = Duration::from_secs(2);

pub(crate) async fn examine(store: &Arc<Store>) -> Result<Vec<Finding>> {
    let mut findings = vec![network(store.options())];
    findings.extend(cluster(store).await?);
    for (node, info) in ask_all(store, &command(&["INFO"])).await? {
        let info = text(info);
        let config = config(store, &node).await;
        findings.push(version(&node, &info));
        findings.push(role(&node, &info));
        findings.push(eviction(&node, &info));
        findings.push(persistence(&node, &info, config.as_ref(), store.options()));
        findings.extend(replication(&node, &info, config.as_ref(), store.options()));
        findings.extend(replica_clocks(store, &node, &info).await);
        if config.is_none() {
            findings.push(blind(&node));
        }
    }
    findings.push(clock(store).await?);
    findings.push(self_test(store).await);
    Ok(findings)
}

fn fine(what: String) -> Finding {
    Finding::fine(what, "ok")
}

/// Who can read and change what we say to the store.
fn network(options: &RedisOptions) -> Finding {
    let local = |it: &Host| it.name == "localhost" || it.name == "::1" || it.name.starts_with("127.");
    if options.tls.is_some() || options.hosts.iter().all(local) {
        return fine(format!("{options}: the connection is local or encrypted"));
    }
    Finding::warning(
        format!("{options}: the connection is not encrypted"),
        "whoever sees the network sees the password and can release any lock",
        "use rediss:// with the servers' tls-port",
    )
}

/// Whether all named nodes are of the cluster that is used.
async fn cluster(store: &Store) -> Result<Vec<Finding>> {
    let called = store.desk(EXAMINING)?.commands.roll_call(EXAMINING).await?;
    let judged = called.into_iter().map(|(host, ours)| match ours {
        Ok(true) => fine(format!("{host}: it is a node of the cluster that is used")),
        Ok(false) => Finding::danger(
            format!("{host}: it belongs to another cluster than most of the nodes, and is not used"),
            "a program that reaches only this node, or names only it, takes locks there that others hold elsewhere",
            "let it join the others again (CLUSTER RESET HARD, then CLUSTER MEET), or take it out of the URL",
        ),
        Err(fault) => Finding::warning(
            format!("{host}: it does not tell to which cluster it belongs ({})", fault.message),
            "if half of the named nodes do so, nobody knows any more which cluster is meant",
            "start it, or take it out of the URL",
        ),
    });
    Ok(judged.collect())
}

fn version(node: &str, info: &str) -> Finding {
    let version = field(info, "redis_version").unwrap_or("unknown");
    let major: u32 = version.split('.').next().and_then(|it| it.parse().ok()).unwrap_or(0);
    let needed = 7;
    if needed <= major {
        return fine(format!("{node}: version {version}"));
    }
    Finding::danger(
        format!("{node}: version {version}"),
        "SET with NX and GET, or sharded channels, which locks need, are missing",
        "use Redis 7 or later, or Valkey",
    )
}

fn role(node: &str, info: &str) -> Finding {
    match field(info, "role") {
        Some("master") => fine(format!("{node}: it is a primary")),
        role => Finding::danger(
            format!("{node}: its role is {}", role.unwrap_or("unknown")),
            "a replica takes no locks",
            "name the primary, or the sentinels by redis+sentinel://",
        ),
    }
}

fn eviction(node: &str, info: &str) -> Finding {
    let policy = field(info, "maxmemory_policy").unwrap_or("unknown");
    let limit = field(info, "maxmemory").unwrap_or("0");
    if policy == "noeviction" || limit == "0" {
        return fine(format!("{node}: no eviction (maxmemory {limit}, policy {policy})"));
    }
    Finding::danger(
        format!("{node}: maxmemory {limit} with policy {policy}"),
        "a full server removes locks that are held, and others get them",
        "set maxmemory-policy noeviction, or keep locks on a server of their own",
    )
}

fn persistence(node: &str, info: &str, config: Option<&Config>, options: &RedisOptions) -> Finding {
    let aof = field(info, "aof_enabled") == Some("1");
    let fsync = config.and_then(|it| it.get("appendfsync")).map_or("?", String::as_str);
    if aof && fsync == "always" {
        return fine(format!("{node}: appendonly yes, appendfsync always"));
    }
    let what = format!("{node}: appendonly {}, appendfsync {fsync}", if aof { "yes" } else { "no" });
    if let Some(guard) = options.restart_guard {
        return fine(format!("{what}, but restart_guard={guard:?} waits after a restart"));
    }
    let saves = config.and_then(|it| it.get("save")).map(String::as_str);
    Finding::warning(
        what,
        forgotten(aof, fsync, saves),
        "set appendonly yes and appendfsync always, or ?restart_guard= to at least the longest ttl",
    )
}

/// What a server that is set so may forget, and when.
fn forgotten(aof: bool, fsync: &str, saves: Option<&str>) -> &'static str {
    match (aof, fsync, saves) {
        (true, "everysec", _) => {
            "if its machine stops, the locks of the last two seconds are forgotten, and may be given to others while they \
             are held"
        }
        (true, ..) => {
            "if its machine stops, locks that were not on its disk yet are forgotten, and may be given to others while they \
             are held"
        }
        (false, _, Some("")) => {
            "a server that restarts has forgotten all locks, and gives those that are still held to others who ask"
        }
        (false, ..) => {
            "a server that stops without saving has forgotten the locks since its last snapshot, and gives those that are \
             still held to others who ask"
        }
    }
}

fn replication(node: &str, info: &str, config: Option<&Config>, options: &RedisOptions) -> Option<Finding> {
    let replicas: u32 = field(info, "connected_slaves")?.parse().ok()?;
    let can_fail_over = options.deployment != Deployment::Single || replicas > 0;
    if !can_fail_over {
        return None;
    }
    let needed: u32 =
        config.and_then(|it| it.get("min-replicas-to-write")).and_then(|it| it.parse().ok()).unwrap_or(0);
    let what = format!("{node}: {replicas} replicas, min-replicas-to-write {needed}");
    if options.replicas != Replicas::None && 0 < replicas && replicas <= needed {
        return Some(fine(format!("{what}, and grants wait for replicas")));
    }
    let remedy = "set min-replicas-to-write to the number of replicas and ?replicas=majority; \
        check fences at the resource, which is safe whatever happens";
    let consequence = if replicas == 0 {
        "if this server fails nothing takes over, or something that knows no locks"
    } else {
        "replication is asynchronous: a failover can forget a lock that is held, and give it to another"
    };
    Some(Finding::warning(what, consequence, remedy))
}

fn blind(node: &str) -> Finding {
    Finding::warning(
        format!("{node}: CONFIG GET is not permitted"),
        "appendfsync and min-replicas-to-write could not be looked at",
        "allow +config|get to the user that runs the doctor, or look for yourself",
    )
}

/// A replica judges expiry by its own clock once it is promoted.
async fn replica_clocks(store: &Store, node: &str, info: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Ok(ours) = server_time(store).await else {
        return findings;
    };
    for index in 0.. {
        let Some(line) = field(info, &format!("slave{index}")) else {
            break;
        };
        let part = |name: &str| line.split(',').find_map(|it| it.strip_prefix(name));
        let (Some(ip), Some(port)) = (part("ip="), part("port=").and_then(|it| it.parse().ok())) else {
            break;
        };
        let host = Host { name: ip.to_owned(), port };
        findings.push(match store.time_of(&host).await {
            Ok(theirs) if ours.abs_diff(theirs) <= OFFSET_MAX => {
                fine(format!("{node}: the clock of its replica {host} agrees"))
            }
            Ok(theirs) => Finding::danger(
                format!("{node}: the clock of its replica {host} differs by {:?}", ours.abs_diff(theirs)),
                "after a failover locks end earlier or later by as much, and fences may go back",
                "let all servers follow the same time source",
            ),
            Err(fault) => Finding::warning(
                format!("{node}: its replica {host} could not be asked ({})", fault.message),
                "whether its clock agrees is not known",
                "run the doctor where all servers can be reached",
            ),
        });
    }
    findings
}

/// The server's clock against ours. Locks do not depend on it; operators who compare times do.
async fn clock(store: &Store) -> Result<Finding> {
    let clock = Clock::boot();
    let before = clock.now();
    let theirs = server_time(store).await?;
    let took = clock.now() - before;
    let offset = time_of_day().abs_diff(theirs);
    let what =
        format!("the clock of the server differs from ours by {offset:?} (a round trip takes {took:?})");
    if offset <= OFFSET_MAX + took {
        return Ok(fine(what));
    }
    Ok(Finding::warning(
        what,
        "locks do not mind; fences of a new server whose clock is behind may be smaller than the old ones",
        "let all machines follow a time source, and never set a server's clock back",
    ))
}

/// Take a lock, wait for it, hand it on, renew it, give it back: everything that a user needs must work.
async fn self_test(store: &Arc<Store>) -> Finding {
    match try_everything(store).await {
        Ok(true) => fine("a lock was taken, handed on by message, renewed and given back".to_owned()),
        Ok(false) => Finding::warning(
            "a lock was handed on, but no message told so".to_owned(),
            "whoever waits learns of its turn late, by asking again",
            "allow the channels &PREFIX:wake:* and +subscribe +publish (on a cluster +ssubscribe +spublish)",
        ),
        Err(fault) => Finding::danger(
            format!("taking a lock fails: {}", fault.message),
            "no lock can be obtained",
            "see the message; for permissions see docs/backends/redis.md",
        ),
    }
}

async fn try_everything(store: &Arc<Store>) -> Result<bool> {
    let broken = |it: lockkeeper_core::Error| Fault::permanent(fault::NAME, EXAMINING, it.to_string());
    let id = ClaimId::random().map_err(broken)?;
    let key = Key::new(&format!("lockkeeper-doctor/{}", id.to_hex())).map_err(broken)?;
    let place = || -> Result<RedisPlace> {
        let claim = Claim::new(key.clone(), Duration::from_secs(5))
            .map_err(broken)?
            .labelled(Arc::new(Label::of_this_process().with(None, Some("the doctor"))));
        Ok(RedisPlace::new(store.clone(), claim))
    };
    let (mut one, mut two) = (place()?, place()?);
    one.turn().await?;
    two.turn().await?;
    one.renew().await?;
    one.leave().await?;
    let heard = tokio::select! {
        () = two.changed() => true,
        () = Clock::boot().sleep(WAKE_MAX) => false,
    };
    let held = matches!(two.turn().await?, Turn::Held(_));
    two.leave().await?;
    if !held {
        return Err(Fault::permanent(fault::NAME, EXAMINING, "a lock that was given back was not handed on"));
    }
    Ok(heard)
}

type Config = HashMap<String, String>;

/// The settings that INFO does not tell; `None` if we may not see them.
async fn config(store: &Store, node: &str) -> Option<Config> {
    let answers = ask_all(store, &command(&["CONFIG", "GET", "*"])).await.ok()?;
    let (_, answer) = answers.into_iter().find(|it| it.0 == node)?;
    redis::from_redis_value(answer).ok()
}

async fn server_time(store: &Store) -> Result<Duration> {
    let answers = ask_all(store, &command(&["TIME"])).await?;
    let first = answers.into_iter().next().map(|it| it.1);
    first
        .and_then(as_time)
        .ok_or_else(|| Fault::transient(fault::NAME, EXAMINING, "the server tells no time"))
}

pub(crate) fn as_time(answer: Value) -> Option<Duration> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(answer).ok()?;
    Some(Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// Ask the server, or every primary of a cluster; each answer with the name of who gave it.
async fn ask_all(store: &Store, command: &Cmd) -> Result<Vec<(String, Value)>> {
    let (mut answers, desk) = (Vec::new(), store.desk(EXAMINING)?);
    for (name, live) in desk.commands.servers(EXAMINING).await? {
        let answer = live.send(command, store.options().timeout).await;
        answers.push((name, answer.map_err(|it| live.fault(EXAMINING, it))?));
    }
    Ok(answers)
}

fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command
}

fn text(value: Value) -> String {
    redis::from_redis_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_restart_forgets_is_told_as_it_is_set() {
        for (aof, fsync, saves, told) in [
            (true, "everysec", Some("3600 1"), "last two seconds"),
            (true, "no", Some(""), "not on its disk yet"),
            (true, "?", None, "not on its disk yet"),
            (false, "everysec", Some(""), "all locks"),
            (false, "everysec", Some("3600 1"), "since its last snapshot"),
            (false, "?", None, "since its last snapshot"),
        ] {
            let consequence = forgotten(aof, fsync, saves);
            assert!(consequence.contains(told), "{aof} {fsync} {saves:?}: {consequence}");
        }
    }
}
