//! Barriers under kills: processes meet round after round, some are killed and start again, and what all heard of each
//! round is put side by side.
//!
//! The child is the test itself in another process: it calls [`wait_for_ever`]. The parent calls [`Storm::run`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Clock, Locker};

use crate::chance::Chance;

/// No round takes so long, whoever is killed.
const HANG: Duration = Duration::from_secs(120);

/// After so long without a word those who are missed come back.
const MISSED: Duration = Duration::from_secs(5);

/// The word before each line that a child says.
const WORD: &str = "met";

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// How many processes meet.
    pub parties: u32,
    /// At how many barriers, side by side.
    pub barriers: u32,
    /// How many rounds must end, of all barriers.
    pub rounds: usize,
    /// How many processes are killed meanwhile.
    pub kills: usize,
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Rounds that opened.
    pub opened: usize,
    /// Rounds that were broken.
    pub broken: usize,
    /// Of these the ones that the dead broke.
    pub died: usize,
}

/// What a child does until it is killed: it waits at every barrier, again and again, now and then without patience, and
/// tells how each round ended.
///
/// # Cancel safety
/// A child that goes away breaks its rounds.
pub async fn wait_for_ever(locker: Locker, party: &str, barriers: u32, ttl: Duration) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..barriers {
        let barrier = locker.barrier(format!("storm {number}"), parties_of(party)).ttl(ttl);
        let (party, mut chance) = (party.to_owned(), Chance::seeded(u64::from(std::process::id() ^ number)));
        let clock = Clock::boot();
        tasks.spawn(async move {
            loop {
                // They come one by one, so that some wait for others.
                clock.sleep(chance.span(Duration::from_millis(10))).await;
                let hasty = chance.per_mille(20);
                let wait = if hasty { chance.span(Duration::from_millis(5)) } else { HANG };
                // A store that fails for a moment is asked again by the next wait.
                let Ok(meeting) = barrier.wait_at_most(&party, wait).await else { continue };
                let line = format!("{WORD} {number} {} {:?}\n", meeting.round, meeting.verdict);
                // One write: a child may be killed at any moment.
                let _ = std::io::stdout().write_all(line.as_bytes());
                let _ = std::io::stdout().flush();
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// Parties are called `at of parties`.
fn parties_of(party: &str) -> u32 {
    party.rsplit(' ').next().and_then(|it| it.parse().ok()).unwrap_or(1)
}

/// How one party heard that a round ended.
struct Heard {
    at: usize,
    barrier: u32,
    round: u64,
    verdict: String,
}

impl Storm {
    /// Start the parties, kill some, and see what they hear. `child` makes the command of a party.
    ///
    /// # Errors
    /// What is wrong: verdicts that differ, or no end of a round.
    pub fn run(&self, child: impl Fn(&str) -> Command) -> Result<Seen, String> {
        let (tell, told) = channel();
        let name = |at: usize| format!("{at} of {}", self.parties);
        let parties = usize::try_from(self.parties).unwrap_or(0);
        let mut crew =
            Crew((0..parties).map(|at| start(child(&name(at)), at, &tell)).collect::<Result<_, _>>()?);
        let (mut verdicts, mut killed) = (BTreeMap::<(u32, u64), Vec<String>>::new(), 0);
        // Now and then one is killed and comes back at once. In between two are killed, and come back when the others have
        // heard that one of them died: one that had arrived when the other had not.
        let mut missed: Vec<usize> = Vec::new();
        while verdicts.len() < self.rounds || killed < self.kills || !missed.is_empty() {
            let heard = next(&told, &verdicts, !missed.is_empty())?;
            if heard.as_ref().is_none_or(|it| it.verdict.contains("Died")) {
                // Killed between two rounds they are missed by nobody. That does not count.
                killed -= usize::from(heard.is_none());
                for at in std::mem::take(&mut missed) {
                    crew.0[at] = start(child(&name(at)), at, &tell)?;
                }
            }
            let Some(Heard { at, barrier, round, verdict }) = heard else { continue };
            verdicts.entry((barrier, round)).or_default().push(verdict);
            let due = (killed + 1) * self.rounds / (self.kills + 1) <= verdicts.len();
            if missed.is_empty() && killed < self.kills && due {
                killed += 1;
                end(&mut crew.0[at]);
                if killed % 2 == 1 {
                    let other = (at + 1) % parties;
                    end(&mut crew.0[other]);
                    missed = vec![at, other];
                } else {
                    crew.0[at] = start(child(&name(at)), at, &tell)?;
                }
            }
        }
        drop(crew);
        drop(tell);
        for Heard { barrier, round, verdict, .. } in told {
            verdicts.entry((barrier, round)).or_default().push(verdict);
        }
        self.judge(&verdicts)
    }

    fn judge(&self, verdicts: &BTreeMap<(u32, u64), Vec<String>>) -> Result<Seen, String> {
        let mut seen = Seen::default();
        for ((barrier, round), heard) in verdicts {
            if heard.iter().any(|it| *it != heard[0])
                || usize::try_from(self.parties).is_ok_and(|it| it < heard.len())
            {
                return Err(format!("round {round} of barrier {barrier} was heard to end so: {heard:?}"));
            }
            let opened = heard[0] == "Open";
            seen.opened += usize::from(opened);
            seen.broken += usize::from(!opened);
            seen.died += usize::from(heard[0].contains("Died"));
        }
        Ok(seen)
    }
}

/// The children, ended with the parent.
struct Crew(Vec<Child>);

impl Drop for Crew {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn start(mut command: Command, at: usize, tell: &Sender<Heard>) -> Result<Child, String> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|it| format!("no child: {it}"))?;
    let Some(out) = child.stdout.take() else { return Err("a child without a voice".to_owned()) };
    let tell = tell.clone();
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let Some(heard) = line.strip_prefix(WORD).and_then(|it| parse(at, it)) else { continue };
            if tell.send(heard).is_err() {
                return;
            }
        }
    });
    Ok(child)
}

fn parse(at: usize, line: &str) -> Option<Heard> {
    let mut words = line.trim_start().splitn(3, ' ');
    let (barrier, round) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Heard { at, barrier, round, verdict: words.next()?.to_owned() })
}

/// What is heard next. `None` if somebody is missed and nobody seems to know: it may have been killed between two rounds.
fn next(
    told: &Receiver<Heard>,
    verdicts: &BTreeMap<(u32, u64), Vec<String>>,
    missed: bool,
) -> Result<Option<Heard>, String> {
    match told.recv_timeout(if missed { MISSED } else { HANG }) {
        Ok(heard) => Ok(Some(heard)),
        Err(_) if missed => Ok(None),
        Err(_) => {
            let ended = verdicts.len();
            let mut text = format!("nobody heard of the end of a round for {HANG:?}; {ended} had ended");
            for ((barrier, round), heard) in verdicts.iter().rev().take(4) {
                let _ = write!(text, "; barrier {barrier}, round {round}: {heard:?}");
            }
            Err(text)
        }
    }
}
