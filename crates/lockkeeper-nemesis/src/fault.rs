//! The written list of faults: what each breaks, and how it is healed.

use std::time::Duration;

use lockkeeper::spi::Clock;
use lockkeeper_servers::Daemon;
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_torture::{Crew, Dice, Order, Trouble};

use crate::full;
use crate::site::{Servers, Site, StoreName};

/// Of what a connection carries, so much is said twice at most.
const TAPE_MAX: usize = 256 * 1024;

/// One way to break something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is broken.
    Calm,
    /// A worker is killed, and another takes its place.
    ClientKill,
    /// A worker stands still for longer than its locks last.
    ClientStop,
    /// Everybody asks and goes away, at any point of the way.
    CancelStorm,
    /// A server is killed and started again with what it had saved.
    ServerKill,
    /// All servers stand still for longer than locks last.
    ServerStop,
    /// A server comes back without its memory.
    ServerForget,
    /// The one that leads is killed, and another takes over.
    Failover,
    /// A minority of the servers stands still.
    MinorityStop,
    /// A majority of the servers stands still.
    MajorityStop,
    /// All connections are cut, several times.
    NetCut,
    /// Everything that is said arrives late.
    NetDelay,
    /// What is asked arrives, what is answered does not, for longer than locks last.
    HalfOpen,
    /// A server is gone without a word, for longer than locks last.
    NetVanish,
    /// A majority of the servers is gone without a word, for everybody.
    MajorityVanish,
    /// One worker hears everything late, and then nothing; the others go on.
    ClientCutOff,
    /// Quiet connections are forgotten by a firewall.
    IdleDrop,
    /// What was said on connections is said once more, later.
    NetDuplicate,
    /// The server's clock jumps ahead.
    ClockForward,
    /// The server's clock is set back.
    ClockBack,
    /// The server's clock jumps to and fro.
    ClockStrobe,
    /// The server ends all connections and takes no more.
    ConnectionsFull,
    /// The server can keep nothing new.
    DiskFull,
}

impl Fault {
    /// The whole list.
    pub const ALL: [Fault; 23] = [
        Fault::Calm,
        Fault::ClientKill,
        Fault::ClientStop,
        Fault::CancelStorm,
        Fault::ServerKill,
        Fault::ServerStop,
        Fault::ServerForget,
        Fault::Failover,
        Fault::MinorityStop,
        Fault::MajorityStop,
        Fault::NetCut,
        Fault::NetDelay,
        Fault::HalfOpen,
        Fault::NetVanish,
        Fault::MajorityVanish,
        Fault::ClientCutOff,
        Fault::IdleDrop,
        Fault::NetDuplicate,
        Fault::ClockForward,
        Fault::ClockBack,
        Fault::ClockStrobe,
        Fault::ConnectionsFull,
        Fault::DiskFull,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Calm => "calm",
            Fault::ClientKill => "client-kill",
            Fault::ClientStop => "client-stop",
            Fault::CancelStorm => "cancel-storm",
            Fault::ServerKill => "server-kill",
            Fault::ServerStop => "server-stop",
            Fault::ServerForget => "server-forget",
            Fault::Failover => "failover",
            Fault::MinorityStop => "minority-stop",
            Fault::MajorityStop => "majority-stop",
            Fault::NetCut => "net-cut",
            Fault::NetDelay => "net-delay",
            Fault::HalfOpen => "half-open",
            Fault::NetVanish => "net-vanish",
            Fault::MajorityVanish => "majority-vanish",
            Fault::ClientCutOff => "client-cut-off",
            Fault::IdleDrop => "idle-drop",
            Fault::NetDuplicate => "net-duplicate",
            Fault::ClockForward => "clock-forward",
            Fault::ClockBack => "clock-back",
            Fault::ClockStrobe => "clock-strobe",
            Fault::ConnectionsFull => "connections-full",
            Fault::DiskFull => "disk-full",
        }
    }

    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Fault::Calm => "nothing is broken",
            Fault::ClientKill => "a process is killed (SIGKILL), another takes its place",
            Fault::ClientStop => "a process stands still (SIGSTOP) for twice its ttl",
            Fault::CancelStorm => {
                "everybody asks and goes away at any point of the way, with a ttl of two minutes"
            }
            Fault::ServerKill => "a server is killed (SIGKILL) and started again with what it had saved",
            Fault::ServerStop => "all servers stand still for one and a half ttl",
            Fault::ServerForget => "a server is restarted without its memory",
            Fault::Failover => "the one that leads is killed, another takes over, the old one comes back",
            Fault::MinorityStop => "a minority of the servers stands still for one and a half ttl",
            Fault::MajorityStop => "a majority of the servers stands still for one and a half ttl",
            Fault::NetCut => "all connections are reset, five times in a second and a half",
            Fault::NetDelay => "everything that is said arrives up to 200 ms later",
            Fault::HalfOpen => {
                "requests arrive, answers to all processes but one are kept back: three times for most of a ttl, then for one and a half"
            }
            Fault::NetVanish => "a server swallows everything for one and a half ttl",
            Fault::MajorityVanish => {
                "a majority of the servers swallows everything that clients say, for one and a half ttl"
            }
            Fault::ClientCutOff => {
                "twice: one process alone hears everything up to 900 ms late for a ttl, then nothing for one and a half"
            }
            Fault::IdleDrop => "connections that were quiet for half a second are forgotten without a word",
            Fault::NetDuplicate => {
                "everybody connects anew, and twice all that was said since is said once more on connections of its own, which servers cannot tell from others"
            }
            Fault::ClockForward => "the server's clock jumps 20 s ahead",
            Fault::ClockBack => "the server's clock is set 5 s back",
            Fault::ClockStrobe => {
                "the server's clock jumps up to 3 s to and fro, ten times in one and a half ttl"
            }
            Fault::ConnectionsFull => {
                "the server ends all connections and takes no more for one and a half ttl"
            }
            Fault::DiskFull => {
                "the servers can keep nothing new for one and a half ttl: their memory (Redis), quota (etcd) or disk (PostgreSQL) is full"
            }
        }
    }

    /// The fault that is written so.
    pub fn named(name: &str) -> Option<Self> {
        Fault::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Break it, and heal it.
    pub(crate) async fn strike(
        self,
        site: &mut Site,
        crew: &mut Crew,
        dice: &mut Dice,
        ttl: Duration,
    ) -> Result<(), Trouble> {
        let long = ttl * 3 / 2;
        match self {
            Fault::Calm => sleep(Duration::from_secs(1)).await,
            Fault::ClientKill => {
                for _ in 0..2 {
                    sleep(dice.span(Duration::from_millis(500))).await;
                    let index = dice.index(crew.size());
                    crew.replace(index).await?;
                }
            }
            Fault::ClientStop => {
                let index = dice.index(crew.size());
                sleep(dice.span(Duration::from_millis(300))).await;
                crew.pause(index)?;
                sleep(ttl * 2).await;
                crew.resume(index)?;
            }
            Fault::CancelStorm => {
                crew.tell(Order::Storm).await?;
                sleep(Duration::from_secs(2)).await;
                crew.tell(Order::Work).await?;
            }
            Fault::ClockForward | Fault::ClockBack => {
                site.clock += if self == Fault::ClockForward { 20_000 } else { -5_000 };
                site.servers.set_clock(site.clock)?;
                sleep(long).await;
            }
            Fault::ClockStrobe => strobe(site, dice, long).await?,
            Fault::NetCut
            | Fault::NetDelay
            | Fault::HalfOpen
            | Fault::NetVanish
            | Fault::MajorityVanish
            | Fault::ClientCutOff
            | Fault::IdleDrop => {
                self.network(site, dice, long).await?;
            }
            Fault::NetDuplicate => duplicate(site, crew, dice, ttl).await?,
            _ => self.server(site, dice, long).await?,
        }
        Ok(())
    }

    async fn network(self, site: &Site, dice: &mut Dice, long: Duration) -> Result<(), Trouble> {
        let all = |rule: Rule| site.proxies.iter().for_each(|it| it.set_both(rule));
        match self {
            Fault::NetCut => {
                for _ in 0..5 {
                    sleep(dice.span(Duration::from_millis(300))).await;
                    site.proxies.iter().for_each(Proxy::cut);
                }
            }
            Fault::NetDelay => {
                for _ in 0..4 {
                    all(Rule::Delay(dice.span(Duration::from_millis(200))));
                    sleep(long / 4).await;
                }
                all(Rule::Pass);
            }
            Fault::HalfOpen => {
                // Three times for less than a ttl, so that late answers still count, and once for more.
                let short = |dice: &mut Dice| long * 2 / 5 + dice.span(long / 5);
                for span in [short(dice), short(dice), short(dice), long] {
                    site.proxies.iter().for_each(|it| it.set(Direction::ToClient, Rule::Hold));
                    sleep(span).await;
                    all(Rule::Pass);
                    sleep(Duration::from_millis(300)).await;
                }
            }
            Fault::NetVanish => {
                let one = &site.proxies[dice.index(site.proxies.len())];
                one.vanish().await?;
                sleep(long).await;
                one.appear().await?;
            }
            Fault::MajorityVanish => {
                // Also for the one who has a way of its own.
                let most = dice.shuffled((0..site.proxies.len()).collect());
                let most = || most.iter().take(site.proxies.len() / 2 + 1);
                let gone = || most().flat_map(|at| [&site.proxies[*at], &site.aside[*at]]);
                for it in gone() {
                    it.vanish().await?;
                }
                sleep(long).await;
                for it in gone() {
                    it.appear().await?;
                }
            }
            Fault::ClientCutOff => {
                for _ in 0..2 {
                    let late = Duration::from_millis(300) + dice.span(Duration::from_millis(600));
                    site.aside.iter().for_each(|it| it.set(Direction::ToClient, Rule::Delay(late)));
                    sleep(long * 2 / 3).await;
                    for it in &site.aside {
                        it.vanish().await?;
                    }
                    sleep(long).await;
                    for it in &site.aside {
                        it.appear().await?;
                    }
                }
            }
            _ => {
                let forget = |after| site.proxies.iter().for_each(|it| it.forget_idle(after));
                forget(Some(Duration::from_millis(500)));
                sleep(long).await;
                forget(None);
            }
        }
        Ok(())
    }

    async fn server(self, site: &Site, dice: &mut Dice, long: Duration) -> Result<(), Trouble> {
        let nodes = site.servers.nodes();
        let one = nodes[dice.index(nodes.len())];
        match self {
            Fault::ServerKill => {
                one.kill()?;
                sleep(dice.span(Duration::from_secs(1))).await;
                one.start().await?;
            }
            Fault::ServerStop => stand_still(&nodes, long).await?,
            Fault::MinorityStop | Fault::MajorityStop => {
                let minority = nodes.len().div_ceil(2) - 1;
                let most = if self == Fault::MinorityStop { minority } else { nodes.len() - minority };
                let some = dice.shuffled(nodes).into_iter().take(most).collect::<Vec<_>>();
                stand_still(&some, long).await?;
            }
            Fault::ServerForget => match &site.servers {
                Servers::Redis(redis) => redis.restart_empty().await?,
                Servers::Redlock(all) => all[dice.index(all.len())].restart_empty().await?,
                _ => {}
            },
            Fault::ConnectionsFull => full::of_connections(&site.servers, long).await?,
            Fault::DiskFull => full::of_room(&site.servers, long).await?,
            _ => fail_over(&site.servers, dice).await?,
        }
        Ok(())
    }
}

/// To and fro around where the clock was, and back to it.
async fn strobe(site: &Site, dice: &mut Dice, long: Duration) -> Result<(), Trouble> {
    for _ in 0..10 {
        let off = i64::try_from(dice.below(6001))? - 3000;
        site.servers.set_clock(site.clock + off)?;
        sleep(long / 10).await;
    }
    site.servers.set_clock(site.clock)
}

/// What is said on connections from their beginning is said once more.
async fn duplicate(site: &Site, crew: &mut Crew, dice: &mut Dice, ttl: Duration) -> Result<(), Trouble> {
    let all = || site.proxies.iter().chain(&site.aside);
    all().for_each(|it| it.record(Some(TAPE_MAX)));
    if site.store.by_session() {
        // Its locks would end with the connections while somebody believes in them. Here nobody is left who could.
        for index in 0..crew.size() {
            crew.replace(index).await?;
        }
    } else {
        all().for_each(Proxy::cut);
    }
    let mut said_again = 0;
    for _ in 0..2 {
        sleep(ttl / 2 + dice.span(ttl)).await;
        for proxy in all() {
            said_again += proxy.repeat().await;
        }
    }
    all().for_each(|it| it.record(None));
    if said_again == 0 {
        return Err("nothing was said twice: this fault was none".into());
    }
    if matches!(site.store, StoreName::Etcd | StoreName::ZooKeeper) {
        // See `remark`.
        for index in 0..crew.size() {
            crew.replace(index).await?;
        }
    }
    Ok(())
}

async fn stand_still(nodes: &[&Daemon], span: Duration) -> Result<(), Trouble> {
    for node in nodes {
        node.pause()?;
    }
    sleep(span).await;
    for node in nodes {
        node.resume()?;
    }
    Ok(())
}

async fn fail_over(servers: &Servers, dice: &mut Dice) -> Result<(), Trouble> {
    match servers {
        Servers::Sentinel(all) => {
            let old = all.primary().await?;
            old.kill()?;
            all.wait_failover(old).await?;
            old.start().await?;
        }
        Servers::Cluster(all) => {
            let key = dice.draw().to_string();
            let old = all.primary_of(&key).await?;
            old.kill()?;
            all.wait_failover(&key, old).await?;
            old.start().await?;
            all.wait_whole().await?;
        }
        Servers::Etcd(all) => {
            let old = all.leader().await?;
            old.kill()?;
            sleep(dice.span(Duration::from_secs(2))).await;
            old.start().await?;
        }
        Servers::ZooKeeper(all) => {
            let old = all.leader().await?;
            old.kill()?;
            sleep(dice.span(Duration::from_secs(2))).await;
            old.start().await?;
        }
        _ => {}
    }
    Ok(())
}

async fn sleep(span: Duration) {
    Clock::boot().sleep(span).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_and_every_store_is_found_by_its_name_and_applies_somewhere() {
        for fault in Fault::ALL {
            assert_eq!(Fault::named(fault.name()), Some(fault));
            assert!(StoreName::ALL.into_iter().any(|it| fault.applies(it)), "{fault:?}");
        }
        for store in StoreName::ALL {
            assert_eq!(StoreName::named(store.name()), Some(store));
        }
        assert!(Fault::named("x").is_none() && StoreName::named("x").is_none());
    }
}
