//! The doctor: what about this ensemble endangers locks.

use std::time::Duration;

use lockkeeper_core::inspect::{Finding, Severity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::ZooKeeper;

/// An answer that takes longer than this on average makes pulses late.
const LATENCY_SLOW_MS: f64 = 100.0;
/// No honest answer to a four-letter word is longer.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

fn finding(severity: Severity, what: String, consequence: &str, remedy: &str) -> Finding {
    Finding::new(severity, what, consequence, remedy)
}

pub(crate) async fn examine(store: &ZooKeeper) -> Vec<Finding> {
    let mut findings = about_session(store);
    if store.options().tls.is_some() {
        findings.push(finding(
            Severity::Fine,
            "the servers are not asked about themselves over TLS".to_owned(),
            "their versions, ticks and number were not looked at",
            "run the doctor once with zookeeper:// from a host that may use the plain port",
        ));
        return findings;
    }
    let (mut standalone, mut leaders) = (false, 0);
    for server in &store.options().servers {
        let Some(answer) = word(store, server, "srvr").await else {
            findings.push(finding(
                Severity::Warning,
                format!("{server} does not answer"),
                "one more server lost may cost the quorum, and with it every lock after its session",
                "start it, or allow the word `srvr` (4lw.commands.whitelist)",
            ));
            continue;
        };
        let field = |name: &str| answer.lines().find_map(|it| it.strip_prefix(name)).map(str::trim);
        match field("Mode:") {
            Some("standalone") => standalone = true,
            Some("leader") => leaders += 1,
            Some(_) => {}
            None => findings.push(finding(
                Severity::Danger,
                format!("{server} does not serve"),
                "no lock can be taken or kept through it",
                "bring a majority of the servers together",
            )),
        }
        findings.extend(field("Zookeeper version:").and_then(|it| about_version(server, it)));
        findings.extend(field("Latency min/avg/max:").and_then(|it| about_latency(server, it)));
        if let Some(conf) = word(store, server, "conf").await {
            findings.extend(about_conf(store, server, &conf));
        }
    }
    if standalone {
        findings.push(finding(
            Severity::Warning,
            "the ensemble has one server".to_owned(),
            "while it is down no lock can be taken, and what is held is lost after its session",
            "run three or five",
        ));
    } else if leaders == 0 {
        findings.push(finding(
            Severity::Warning,
            "none of the servers in the URL leads".to_owned(),
            "the leader is elsewhere, or there is none",
            "name all servers in the URL; see their logs",
        ));
    }
    findings
}

fn about_session(store: &ZooKeeper) -> Vec<Finding> {
    let (asked, given) = (store.options().session, store.session_timeout());
    if asked == given {
        let what = format!("the session time-out is {given:?}, as asked for");
        return vec![finding(Severity::Fine, what, "this is the ttl of every lock", "nothing")];
    }
    vec![finding(
        Severity::Warning,
        format!("a session time-out of {asked:?} was asked for and {given:?} was given"),
        "the ttl of every lock is what was given",
        "set minSessionTimeout and maxSessionTimeout of the servers, or `session` in the URL",
    )]
}

fn about_version(server: &str, text: &str) -> Option<Finding> {
    let version = text.split(['-', ',', ' ']).next()?;
    let mut parts = version.split('.').map(|it| it.parse::<u32>().unwrap_or(0));
    let version_is = (parts.next()?, parts.next()?, parts.next().unwrap_or(0));
    Some(if version_is < (3, 5, 3) {
        finding(
            Severity::Danger,
            format!("{server} is version {version}"),
            "it has no container nodes: no lock can be taken",
            "update to 3.8 or later",
        )
    } else {
        let what = format!("{server} is version {version}");
        finding(Severity::Fine, what, "we know of no defect, and test with 3.8.0", "nothing")
    })
}

fn about_latency(server: &str, text: &str) -> Option<Finding> {
    let average: f64 = text.split('/').nth(1)?.trim().parse().ok()?;
    (LATENCY_SLOW_MS < average).then(|| {
        finding(
            Severity::Warning,
            format!("{server} takes {average:.0} ms on average"),
            "locks are slow, and pulses may be late",
            "use faster disks for dataLogDir; do not let the server swap",
        )
    })
}

fn about_conf(store: &ZooKeeper, server: &str, conf: &str) -> Option<Finding> {
    let tick = conf.lines().find_map(|it| it.strip_prefix("tickTime="))?.trim().parse().ok()?;
    let (tick, allowed) = (Duration::from_millis(tick), store.options().tick_of(store.session_timeout()));
    (allowed < tick).then(|| {
        finding(
            Severity::Danger,
            format!("the tick of {server} is {tick:?}, and {allowed:?} is taken off deadlines"),
            "the leader may end our session before we call our locks lost",
            "set `tick` in the URL to the ensemble's tickTime",
        )
    })
}

/// The answer to a four-letter word; `None` if the server does not answer, or does not allow the word.
async fn word(store: &ZooKeeper, server: &str, word: &str) -> Option<String> {
    let ask = async {
        let mut stream = TcpStream::connect(server).await.ok()?;
        stream.write_all(word.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await.ok()?;
        Some(answer).filter(|it| !it.contains("not in the whitelist"))
    };
    store.store.in_time("examining the ensemble", ask).await.ok()?
}
