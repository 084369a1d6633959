//! Many who want one key: tasks of one process, and tasks of four.

use std::time::Duration;

use lockkeeper_servers::Redis;

use super::OnRedis;
use super::tally;
use super::trips;
use crate::crowd::{self, Crowd, Parties, Plan};
use crate::measure::{median, per};
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};

const SPAN: Duration = Duration::from_secs(2);
const PROCESSES: usize = 4;
/// How often the rivals take turns.
const TURNS: usize = 3;

/// What all processes of one rival reached together.
struct Fought {
    crowd: Crowd,
    /// Commands to the server, in what counts.
    commands: u64,
    /// Right before, by the same processes, in microseconds: a bare round trip of one, and a bare message from one to
    /// the next, which is a round trip from process to process.
    ping: f64,
    message: f64,
}

impl Fought {
    fn commands_per_guard(&self) -> f64 {
        per(self.commands, self.crowd.guards().iter().sum())
    }
}

pub(crate) async fn one_process(server: &Redis) -> Outcome {
    let mut rates = Vec::new();
    let mut commands = 0.0;
    for name in ["rslock", "ours"] {
        let rival = OnRedis::named(name, &server.url()).await?;
        tally::reset(server).await?;
        let crowd = crowd::here(vec![rival], 64, &format!("crowd:{name}"), SPAN).await?.sound()?;
        commands = per(tally::sent(server, name).await?, crowd.total());
        rates.push(crowd.rate());
    }
    Ok(vec![
        Row::of_rates(
            "64 tasks of one process on one key, guards per second, beside rslock",
            (rates[1], rates[0]),
            40.0,
        ),
        Row::of_number("the same: commands per guard", commands, Bound::AtMost(0.1)),
    ])
}

/// Four processes with sixteen tasks each.
pub(crate) async fn four_crowds(server: &Redis) -> Outcome {
    let (mut ratios, mut rates, mut evenness, mut commands) = (vec![], [vec![], vec![]], vec![], vec![]);
    for turn in 0..TURNS {
        let theirs = processes(server, "rslock", 16, turn).await?;
        let ours = processes(server, "ours", 16, turn).await?;
        ratios.push(ours.crowd.rate() / theirs.crowd.rate());
        rates[0].push(ours.crowd.rate());
        rates[1].push(theirs.crowd.rate());
        evenness.push(ours.crowd.jain());
        commands.push(ours.commands_per_guard());
    }
    let what = "4 processes × 16 tasks on one key, guards per second, beside rslock";
    let mut row = Row::of_rates(what, (median(&mut rates[0]), median(&mut rates[1])), 10.0);
    row.ratio = median(&mut ratios);
    row.note.push_str("every guard counted in a plain file: none lost");
    let least_even = evenness.iter().copied().fold(1.0, f64::min);
    Ok(vec![
        row,
        Row::of_number(
            "the same: how evenly the processes are served (Jain index, 1 = even)",
            least_even,
            Bound::AtLeast(0.95),
        ),
        Row::of_number("the same: commands per guard", median(&mut commands), Bound::AtMost(0.3)),
    ])
}

/// Four processes with one task each: every guard crosses processes.
pub(crate) async fn four_alone(server: &Redis) -> Outcome {
    let (mut ratios, mut hand_ons, mut messages, mut pings) = (vec![], vec![], vec![], vec![]);
    let (mut slowest, mut commands, mut rates) = (vec![], vec![], vec![]);
    for turn in 0..2 * TURNS {
        let ours = processes(server, "ours", 1, turn).await?;
        let (half, most) = ours.crowd.hand_on();
        ratios.push(half / ours.message);
        hand_ons.push(half);
        slowest.push(most);
        messages.push(ours.message);
        pings.push(ours.ping);
        commands.push(ours.commands_per_guard());
        rates.push(ours.crowd.rate());
    }
    let note = format!(
        "99 %: {:.0} µs; {:.0} guards/s; `PING` by one process alone {:.0} µs; what remains: decision 74",
        median(&mut slowest),
        median(&mut rates),
        median(&mut pings)
    );
    Ok(vec![
        Row {
            what: "4 processes × 1 task on one key, from release to grant in another, beside a bare message (`PUBLISH`) \
                   from process to process",
            ours: format!("{:.0}µs", median(&mut hand_ons)),
            theirs: format!("{:.0}µs", median(&mut messages)),
            ratio: median(&mut ratios),
            bound: Bound::AtMost(1.4),
            note,
        },
        Row::of_number("the same: commands per guard", median(&mut commands), Bound::AtMost(2.2)),
    ])
}

async fn processes(server: &Redis, rival: &str, tasks: usize, turn: usize) -> Answer<Fought> {
    let (url, key) = (server.url(), format!("processes:{tasks}:{rival}:{turn}"));
    let plan = Plan { rival, url: &url, key: &key, ttl: crowd::TTL, processes: PROCESSES, tasks };
    let mut parties = Parties::start(plan).await?;
    let (ping, message) = (trips::ping(parties.workers()).await?, trips::relay(parties.workers()).await?);
    let mut commands = 0;
    let crowd = parties
        .fight_watched(
            SPAN,
            async || tally::reset(server).await,
            async || {
                commands = tally::sent(server, rival).await?;
                Ok(())
            },
        )
        .await?
        .sound()?;
    Ok(Fought { crowd, commands, ping, message })
}
