//! How each fault is struck, and healed.

use std::time::Duration;

use lockkeeper::spi::Clock;
use lockkeeper_servers::Daemon;
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_torture::{Crew, Dice, Order, Trouble};

use crate::fault::Fault;
use crate::full;
use crate::site::{Servers, Site, StoreName};

/// Of what a connection carries, so much is said twice at most.
const TAPE_MAX: usize = 256 * 1024;

impl Fault {
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
            Fault::RuntimeDrop => {
                for order in [Order::Work, Order::Storm] {
                    crew.tell(order).await?;
                    for _ in 0..2 {
                        sleep(dice.span(long / 2)).await;
                        crew.tell(Order::DropRuntime).await?;
                    }
                }
                crew.tell(Order::Work).await?;
            }
            Fault::Fork => {
                for _ in 0..10 {
                    crew.tell(Order::Fork).await?;
                    sleep(long / 10).await;
                }
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
            Fault::LeaderParted | Fault::AllParted => {
                part(&site.servers, self == Fault::AllParted, long).await?;
            }
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

/// Whoever leads on one side and the others on the other, or each alone.
async fn part(servers: &Servers, each: bool, span: Duration) -> Result<(), Trouble> {
    let leader = match servers {
        Servers::Etcd(all) => all.leader().await?.port(),
        Servers::ZooKeeper(all) => all.leader().await?.port(),
        _ => return Ok(()),
    };
    let sides = servers.nodes().into_iter().zip(0..);
    let sides = sides.map(|(it, own)| if each { own } else { u8::from(it.port() == leader) });
    servers.part(Some(&sides.collect::<Vec<u8>>()));
    sleep(span).await;
    servers.part(None);
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
