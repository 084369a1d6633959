//! One who waits at a barrier: its arrival, its wait for a verdict, and what becomes of the round if it goes away.

use crate::api::barrier::presence::Presence;
use crate::api::barrier::sheet::{Arrival, Breach, Told, Verdict};
use crate::api::barrier::venue::Venue;
use crate::clock::Moment;
use crate::engine::memo::{Change, Changed, MemoOf};
use crate::error::{Error, Result};

/// What an arrival found.
enum Arrived {
    /// We take part in this round.
    In(u64),
    /// We would be the last, and somebody before us was not asked for a sign of life.
    Check,
}

/// One who waits at a venue.
pub(super) struct Guest {
    pub(super) venue: Venue,
    pub(super) memo: MemoOf,
    pub(super) me: Arrival,
    /// The round that we break if we go away.
    round: Option<u64>,
    /// Kept for its drop, which ends it.
    _presence: Presence,
}

impl Guest {
    /// Somebody who has not arrived yet, and has said to be alive.
    pub(super) fn new(venue: Venue, memo: MemoOf, me: Arrival, presence: Presence) -> Self {
        Guest { venue, memo, me, round: None, _presence: presence }
    }

    /// The round has its verdict: going away breaks nothing any more.
    pub(super) fn is_through(&mut self) {
        self.round = None;
    }

    /// Take part in the round that gathers, but not with the dead.
    pub(super) async fn arrive(&mut self) -> Result<u64> {
        let (venue, me) = (self.venue.clone(), self.me.clone());
        let mut checked: Vec<String> = Vec::new();
        loop {
            let (sheet, _) = venue.look(&self.memo).await?;
            let others = || sheet.arrived.iter().filter(|it| it.party != me.party);
            let asked = others().rev().take(if sheet.opens_with(&me) { usize::MAX } else { 1 });
            if let Some(dead) = venue.first_dead(asked.clone()).await? {
                let ended = venue.end_round(&self.memo, sheet.round(), &dead.token, Breach::Died);
                venue.in_runtime(ended).await?;
                continue;
            }
            checked.extend(asked.map(|it| it.token.clone()));
            // From here on the store may know of us.
            self.round = Some(sheet.round());
            match venue.in_runtime(self.enter_sheet(&checked)).await? {
                Arrived::Check => self.round = None,
                Arrived::In(round) => {
                    self.round = Some(round);
                    return Ok(round);
                }
            }
        }
    }

    /// One swap adds us, and opens the round if we are the last.
    async fn enter_sheet(&self, checked: &[String]) -> Result<Arrived> {
        let Guest { venue, me, memo, .. } = self;
        let mut round = 0;
        let decide = |there: Option<&[u8]>| {
            let mut sheet = venue.read(there)?;
            // An answer that was lost: we are in already.
            if sheet.members.iter().any(|it| it.token == me.token) {
                return Ok(Change::Leave(Arrived::In(sheet.opened)));
            }
            if sheet.has_arrived(&me.token) {
                return Ok(Change::Leave(Arrived::In(sheet.round())));
            }
            let unchecked = |it: &Arrival| it.party != me.party && !checked.contains(&it.token);
            if sheet.opens_with(me) && sheet.arrived.iter().any(unchecked) {
                return Ok(Change::Leave(Arrived::Check));
            }
            round = sheet.round();
            sheet.arrive(me);
            Ok(Change::Write(sheet.text().into_bytes(), venue.remember))
        };
        let changed = memo.change(&venue.engine, decide).await?;
        Ok(match changed {
            Changed::Left(arrived) => arrived,
            Changed::Written => Arrived::In(round),
        })
    }

    /// Wait until the round has a verdict; see to it that it gets one.
    pub(super) async fn verdict(&self, round: u64, until: Moment) -> Result<Verdict> {
        let Guest { venue, memo, me, .. } = self;
        let clock = &venue.engine.clock;
        let mut check_at = clock.now().after(venue.ttl / 3);
        loop {
            let (sheet, version) = venue.look(memo).await?;
            match sheet.told(round) {
                Told::Decided(verdict) => return Ok(verdict),
                Told::Forgotten => return Err(self.came_too_late(round)),
                Told::Gathering if !sheet.has_arrived(&me.token) => return Err(self.replaced()),
                Told::Gathering => {}
            }
            let now = clock.now();
            if until <= now {
                let ended = venue.end_round(memo, round, &me.token, Breach::TimedOut);
                venue.in_runtime(ended).await?;
                continue;
            }
            if check_at <= now {
                check_at = now.after(venue.ttl / 3);
                if let Some(dead) = venue.first_dead(sheet.before(&me.token).into_iter()).await? {
                    let ended = venue.end_round(memo, round, &dead.token, Breach::Died);
                    venue.in_runtime(ended).await?;
                    continue;
                }
            }
            let changed = memo.changed(&venue.engine, version, until.min(check_at));
            venue.in_runtime(changed).await?;
        }
    }

    fn replaced(&self) -> Error {
        let (name, party) = (&self.venue.name, &self.me.party);
        Error::invalid(format!(
            "another came to the barrier \"{name}\" under the name \"{party}\" and waits in our place: each party needs a name of its own"
        ))
    }

    fn came_too_late(&self, round: u64) -> Error {
        let name = &self.venue.name;
        Error::invalid(format!(
            "round {round} of the barrier \"{name}\" ended so long ago that it is not kept how; more than a thousand rounds were held since"
        ))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let Some(round) = self.round.take() else { return };
        // Who waits is the process that forked; it waits on.
        if !self.venue.engine.is_here() {
            return;
        }
        let (venue, memo, token) = (self.venue.clone(), self.memo.clone(), self.me.token.clone());
        self.venue.engine.background.spawn(async move {
            // What cannot be written ends with our sign of life.
            let _ = venue.end_round(&memo, round, &token, Breach::Withdrawn).await;
        });
    }
}
