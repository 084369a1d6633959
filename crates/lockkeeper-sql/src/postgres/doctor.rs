//! What about the server's settings endangers locks.

use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::Finding;
use tokio_postgres::config::Host;

use super::Store;
use super::fault::Trouble;
use super::origin::{self, Writer};
use crate::finding::encryption;

const DOING: &str = "examining the server";

/// Look at everything that matters for locks.
pub(super) async fn examine(store: &Store) -> Result<Vec<Finding>> {
    let sql = "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', \
               'synchronous_commit', 'synchronous_standby_names', 'statement_timeout', 'lock_timeout', \
               'default_transaction_isolation', 'idle_session_timeout') \
               UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication \
               UNION ALL SELECT 'cipher', cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl \
               UNION ALL SELECT 'version', current_setting('server_version')";
    let rows = store.links.rows(DOING, sql, &[]).await?;
    let mut settings = std::collections::HashMap::new();
    for row in rows {
        let pair: std::result::Result<(String, String), _> =
            row.try_get(0).and_then(|it| Ok((it, row.try_get(1)?)));
        let (name, value) = pair.map_err(|it| Trouble::from(it).fault(DOING))?;
        settings.insert(name, value);
    }
    let get = |name: &str| settings.get(name).map_or("", String::as_str);
    let mut findings = durability(get);
    findings.extend(replication(get));
    findings.extend(timeouts(get));
    let options = &store.links.shared.options;
    let hosts: Vec<String> = options.config.get_hosts().iter().map(host).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let cipher = if get("cipher").is_empty() { "unknown: a pooler stands between" } else { get("cipher") };
    findings.push(encryption(options.tls.is_some(), cipher, &hosts));
    findings.extend(writing(&store.links.shared.dialer.writers().await));
    findings.push(listening(store).await);
    Ok(findings)
}

pub(super) fn host(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.to_string_lossy().into_owned(),
    }
}

/// Of several hosts of the URL one takes writes.
pub(super) fn writing(writers: &[Writer]) -> Option<Finding> {
    let two = writers.iter().enumerate().find_map(|(at, one)| {
        let other = writers.iter().skip(at + 1).find(|other| origin::are_two(one, other))?;
        Some((&one.host, &other.host))
    });
    if let Some((one, other)) = two {
        return Some(Finding::danger(
            format!("{one} and {other} both take writes"),
            "each keeps locks of its own: whoever reaches only one of them gets what is held at the other",
            "stop one of them, or make it a standby of the other; or take it out of the URL",
        ));
    }
    let unasked = writers.iter().find(|it| it.origin.is_none())?;
    Some(Finding::warning(
        format!("this user may not ask {} which store it is", unasked.host),
        "if two hosts of the URL take writes, both are believed",
        "GRANT EXECUTE ON FUNCTION pg_control_system, pg_walfile_name TO this user",
    ))
}

fn durability<'a>(get: impl Fn(&str) -> &'a str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in ["fsync", "full_page_writes"] {
        if get(name) == "off" {
            findings.push(Finding::danger(
                format!("{name} is off"),
                "after a crash of the host the lock tables may be damaged or forget grants",
                "switch it on",
            ));
        }
    }
    match get("synchronous_commit") {
        it @ ("off" | "local" | "remote_write") => findings.push(Finding::fine(format!("synchronous_commit is {it} for this user"), "each of our functions switches it on for its own transaction: a grant is on disk before it is told")),
        it => findings.push(Finding::fine(format!("synchronous_commit is {it}"), "a grant is on disk before it is told")),
    }
    findings
}

fn replication<'a>(get: impl Fn(&str) -> &'a str) -> Option<Finding> {
    let standbys = get("standbys");
    if standbys.is_empty() || standbys == "0" {
        return None;
    }
    let names = get("synchronous_standby_names");
    Some(if names.is_empty() {
        Finding::danger(
            format!("{standbys} standby connected, none of them synchronous"),
            "if a standby is promoted, the last grants are forgotten; fences still grow, because they follow the clock",
            "name a synchronous standby, or check fences where it matters",
        )
    } else {
        Finding::fine(format!("synchronous_standby_names is {names}"), "a promoted standby knows all grants")
    })
}

fn timeouts<'a>(get: impl Fn(&str) -> &'a str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in ["statement_timeout", "lock_timeout"] {
        let millis: u64 = get(name).parse().unwrap_or(0);
        if (1..1000).contains(&millis) {
            findings.push(Finding::warning(
                format!("{name} is {millis} ms"),
                "verbs may be cancelled when the server is busy; they are repeated, which costs time",
                "raise it for the user of the locks",
            ));
        }
    }
    let isolation = get("default_transaction_isolation");
    if isolation != "read committed" {
        findings.push(Finding::warning(
            format!("default_transaction_isolation is {isolation}"),
            "correct, but verbs that meet on one lock fail and are repeated",
            "ALTER ROLE … SET default_transaction_isolation = 'read committed' for the user of the locks",
        ));
    }
    findings
}

async fn listening(store: &Store) -> Finding {
    if !store.links.shared.options.listen {
        return Finding::warning(
            "`listen=no` was chosen",
            "whoever waits looks at the line again and again instead of being called",
            "remove it unless a pooler stands between",
        );
    }
    let heard = super::hear::hello(&store.links.shared).await;
    if heard {
        return Finding::fine("messages arrive", "whoever waits is called");
    }
    Finding::warning(
        "a message sent by NOTIFY did not arrive; a pooler stands between, or the server is slow",
        "locks are safe; whoever waits looks at the line again and again instead of being called",
        "connect to the server itself, or choose `listen=no`",
    )
}
