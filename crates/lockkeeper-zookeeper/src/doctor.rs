//! The doctor: what about this ensemble, and about what lies in it, endangers locks.

use std::time::Duration;

use lockkeeper_core::inspect::{Finding, Inspect, Severity};
use lockkeeper_core::kit::some_of;

use crate::ZooKeeper;
use crate::alone;

/// An answer that takes longer than this on average makes pulses late.
const LATENCY_SLOW_MS: f64 = 100.0;

type Version = (u32, u32, u32);

/// The first version with container nodes.
const VERSION_MIN: Version = (3, 5, 3);
/// The first in which a follower that lost its leader stops for good before it begins anew (ZOOKEEPER-4712).
const VERSION_WITHOUT_GHOSTS: Version = (3, 9, 3);

/// Findings about servers; what is true of several is told once.
#[derive(Default)]
struct Findings {
    all: Vec<(Vec<String>, Finding)>,
}

impl Findings {
    fn of(&mut self, server: &str, finding: Finding) {
        match self.all.iter_mut().find(|it| it.1 == finding) {
            Some((servers, _)) => servers.push(server.to_owned()),
            None => self.all.push((vec![server.to_owned()], finding)),
        }
    }

    fn told(self) -> impl Iterator<Item = Finding> {
        self.all.into_iter().map(|(servers, mut it)| {
            it.what = format!("{}: {}", some_of(&servers), it.what);
            it
        })
    }
}

pub(crate) async fn examine(store: &ZooKeeper) -> Vec<Finding> {
    let mut findings = vec![about_session(store)];
    findings.extend(about_lines(store).await);
    if store.options().tls.is_some() {
        findings.push(Finding::new(
            Severity::Fine,
            "the servers are not asked about themselves over TLS",
            "their versions, ticks and number were not looked at",
            "run the doctor once with zookeeper:// from a host that may use the plain port",
        ));
        return findings;
    }
    let (mut standalone, mut leaders, mut servers) = (false, 0, Findings::default());
    for server in &store.options().servers {
        let Some(answer) = word(store, server, "srvr").await else {
            servers.of(
                server,
                Finding::warning(
                    "no answer",
                    "one more server lost may cost the quorum, and with it every lock after its session",
                    "start it, or allow the word `srvr` (4lw.commands.whitelist)",
                ),
            );
            continue;
        };
        let field = |name: &str| answer.lines().find_map(|it| it.strip_prefix(name)).map(str::trim);
        let mode = field("Mode:");
        match mode {
            Some("standalone") if 1 < store.options().servers.len() => servers.of(server, stands_alone()),
            Some("standalone") => standalone = true,
            Some("leader") => leaders += 1,
            Some(_) => {}
            None => servers.of(
                server,
                Finding::danger(
                    "it does not serve",
                    "no lock can be taken or kept through it",
                    "bring a majority of the servers together",
                ),
            ),
        }
        let alone = mode == Some("standalone");
        let version = field("Zookeeper version:").and_then(|it| about_version(it, alone));
        let latency = field("Latency min/avg/max:").and_then(about_latency);
        let conf = word(store, server, "conf").await.and_then(|it| about_conf(store, &it));
        version.into_iter().chain(latency).chain(conf).for_each(|it| servers.of(server, it));
    }
    findings.extend(servers.told());
    findings.extend(about_ensemble(standalone, leaders));
    findings
}

/// One of several that are named.
fn stands_alone() -> Finding {
    Finding::danger(
        "it stands alone, and the URL names several servers",
        "it keeps locks of its own: whoever reaches only it, and does not know the others, gets what is held there",
        "stop it, and start it as a member of the ensemble; if it is the only one, name it alone",
    )
}

fn about_ensemble(standalone: bool, leaders: usize) -> Option<Finding> {
    if standalone {
        Some(Finding::warning(
            "the ensemble has one server",
            "while it is down no lock can be taken, and what is held is lost after its session",
            "run three or five",
        ))
    } else if leaders == 0 {
        Some(Finding::warning(
            "none of the servers in the URL leads",
            "the leader is elsewhere, or there is none",
            "name all servers in the URL; see their logs",
        ))
    } else {
        None
    }
}

fn about_session(store: &ZooKeeper) -> Finding {
    let (asked, given) = (store.options().usual_session(), store.session_timeout());
    if asked == given {
        let what = format!("a session timeout of {given:?} was asked for and given");
        return Finding::fine(what, "locks of this ttl are replaced this long after their holder died");
    }
    Finding::warning(
        format!("a session timeout of {asked:?} was asked for and {given:?} was given"),
        "a ttl beyond what the servers give is refused",
        "set minSessionTimeout and maxSessionTimeout of the servers, or ask for ttls within them",
    )
}

/// What stands in lines and is not ours.
async fn about_lines(store: &ZooKeeper) -> Vec<Finding> {
    let lines = match store.list("").await {
        Ok(lines) => lines,
        Err(fault) => {
            return vec![Finding::warning(
                format!("the lines could not be looked at: {fault}"),
                "whether something foreign stands in them is not known",
                "give the user the right to read below the URL's path",
            )];
        }
    };
    let foreign: Vec<String> = lines.into_iter().flat_map(|it| it.foreign).collect();
    if foreign.is_empty() {
        return Vec::new();
    }
    vec![Finding::warning(
        format!("there is something in lines that is not ours: {}", some_of(&foreign)),
        "if it has a name like ours it holds up those behind it until somebody removes it",
        "remove it by hand, or look as the user to whom it belongs",
    )]
}

fn about_version(text: &str, standalone: bool) -> Option<Finding> {
    let version = text.split(['-', ',', ' ']).next()?;
    let mut parts = version.split('.').map(|it| it.parse::<u32>().unwrap_or(0));
    let version_is = (parts.next()?, parts.next()?, parts.next().unwrap_or(0));
    let what = format!("version {version}");
    Some(if version_is < VERSION_MIN {
        Finding::danger(what, "it has no container nodes: no lock can be taken", "update to 3.9.3 or later")
    } else if version_is < VERSION_WITHOUT_GHOSTS && !standalone {
        Finding::warning(
            what,
            "a follower that lost its leader may go on showing claims that are gone (ZOOKEEPER-4712, -4541); who \
             waits for one asks the leader after a third of its ttl, so that a hand-off may take that long",
            "update to 3.9.3 or later; restart a follower that shows more than the others",
        )
    } else {
        Finding::fine(what, "we know of no defect that endangers locks, and test with 3.8.0")
    })
}

fn about_latency(text: &str) -> Option<Finding> {
    let average: f64 = text.split('/').nth(1)?.trim().parse().ok()?;
    (LATENCY_SLOW_MS < average).then(|| {
        Finding::warning(
            format!("an answer takes {average:.0} ms on average"),
            "locks are slow, and pulses may be late",
            "use faster disks for dataLogDir; do not let the server swap",
        )
    })
}

fn about_conf(store: &ZooKeeper, conf: &str) -> Option<Finding> {
    let number = |name: &str| -> Option<u64> {
        conf.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix('=')?.trim().parse().ok())
    };
    let tick = Duration::from_millis(number("tickTime")?);
    // The shortest session has the shortest margin.
    let shortest = number("minSessionTimeout").map_or(tick * 2, Duration::from_millis);
    let allowed = store.options().tick_of(shortest.max(crate::options::TTL_MIN));
    // The leader hears of us every half tick.
    (allowed < tick / 2).then(|| {
        Finding::danger(
            format!("the tick is {tick:?}, and {allowed:?} is taken off the deadlines of short ttls"),
            "the leader may end our session before we call our locks lost",
            "set `tick` in the URL to the ensemble's tickTime",
        )
    })
}

/// The answer to a four-letter word, unless that takes too long.
async fn word(store: &ZooKeeper, server: &str, word: &str) -> Option<String> {
    store.store.in_time("examining the ensemble", alone::word(server, word)).await.ok()?
}
