//! What a barrier's memo says: who has arrived in the present round, and how the rounds before ended.
//!
//! Arrivals and verdict are in one memo, so the last arrival and the opening are one write, and there is one verdict.

use crate::api::limits::PartyList;
use crate::error::{Error, Result};

/// How many verdicts are kept. Whoever learns of its round later than that learns that it is too late.
const VERDICTS_MAX: usize = 1024;

/// A head with the verdicts of the last rounds, and a line for each who has arrived and each who went through last.
pub(super) const LIST: PartyList = PartyList { what: "barrier", head: 1101, each: 36, times: 2 };

/// How a round ended, the same for all who took part in it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use std::time::Duration;
/// # use lockkeeper_core::barrier::{Breach, Verdict};
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let alone = locker.barrier("step", 2).wait_at_most("first", Duration::from_millis(5)).await?;
/// assert_eq!(alone.verdict, Verdict::Broken(Breach::TimedOut));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// All have arrived.
    Open,
    /// It will never open: somebody who had arrived did not wait for the others. The next who comes begins another round.
    Broken(Breach),
}

/// Why a round is [`Verdict::Broken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breach {
    /// Somebody waited as long as it wanted to.
    TimedOut,
    /// Somebody went away: it dropped its future, or could not reach the store.
    Withdrawn,
    /// Somebody gave no sign of life for its ttl.
    Died,
}

impl Verdict {
    fn code(self) -> char {
        match self {
            Verdict::Open => 'o',
            Verdict::Broken(Breach::TimedOut) => 't',
            Verdict::Broken(Breach::Withdrawn) => 'w',
            Verdict::Broken(Breach::Died) => 'd',
        }
    }

    fn of(code: u8) -> Option<Self> {
        let all = [Breach::TimedOut, Breach::Withdrawn, Breach::Died].map(Verdict::Broken);
        all.into_iter().chain([Verdict::Open]).find(|it| it.code() == char::from(code))
    }
}

/// Somebody at a barrier: its name, and a word that only this one arrival has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) token: String,
    pub(super) party: String,
}

/// What is known about a round.
pub(super) enum Told {
    Gathering,
    Decided(Verdict),
    /// It ended so long ago that it is not known how.
    Forgotten,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sheet {
    pub(super) parties: u32,
    /// How many rounds have ended.
    decided: u64,
    /// How the last of them ended, a letter each.
    verdicts: String,
    /// The last round that opened, and who took part in it.
    pub(super) opened: u64,
    pub(super) members: Vec<Arrival>,
    /// Who has arrived in the present round.
    pub(super) arrived: Vec<Arrival>,
}

impl Sheet {
    /// The round that gathers now, or will.
    pub(super) fn round(&self) -> u64 {
        self.decided + 1
    }

    pub(super) fn told(&self, round: u64) -> Told {
        if self.decided < round {
            return Told::Gathering;
        }
        let back = usize::try_from(self.decided - round).unwrap_or(usize::MAX);
        let code = self.verdicts.as_bytes().iter().rev().nth(back);
        code.and_then(|it| Verdict::of(*it)).map_or(Told::Forgotten, Told::Decided)
    }

    /// The present round ends so.
    pub(super) fn decide(&mut self, verdict: Verdict) {
        let arrived = std::mem::take(&mut self.arrived);
        self.decided += 1;
        if verdict == Verdict::Open {
            (self.opened, self.members) = (self.decided, arrived);
        }
        self.verdicts.push(verdict.code());
        let over = self.verdicts.len().saturating_sub(VERDICTS_MAX);
        self.verdicts.drain(..over);
    }

    /// Arrive, in place of whoever had this name. The last to arrive opens.
    pub(super) fn arrive(&mut self, me: &Arrival) {
        match self.arrived.iter_mut().find(|it| it.party == me.party) {
            Some(before) => before.token.clone_from(&me.token),
            None => self.arrived.push(me.clone()),
        }
        if self.is_full() {
            self.decide(Verdict::Open);
        }
    }

    fn is_full(&self) -> bool {
        usize::try_from(self.parties).is_ok_and(|it| it <= self.arrived.len())
    }

    /// Whether the round opens if this party arrives now.
    pub(super) fn opens_with(&self, me: &Arrival) -> bool {
        let others = self.arrived.iter().filter(|it| it.party != me.party).count();
        usize::try_from(self.parties).is_ok_and(|it| it <= others + 1)
    }

    pub(super) fn has_arrived(&self, token: &str) -> bool {
        self.arrived.iter().any(|it| it.token == token)
    }

    /// Whom this one watches: whoever arrived before it, the first the last. So everybody is watched by somebody.
    pub(super) fn before(&self, token: &str) -> Option<&Arrival> {
        let at = self.arrived.iter().position(|it| it.token == token)?;
        let before = at.checked_sub(1).unwrap_or(self.arrived.len() - 1);
        Some(&self.arrived[before]).filter(|it| it.token != token)
    }

    /// A line for each fact. Names have no line breaks.
    pub(super) fn text(&self) -> String {
        let Sheet { parties, decided, verdicts, opened, members, arrived } = self;
        let mut text = format!("barrier {parties}\ndecided {decided} {verdicts}\nopened {opened}\n");
        for (kind, all) in [('m', members), ('a', arrived)] {
            for Arrival { token, party } in all {
                text.extend([&*format!("{kind} "), token, " ", party, "\n"]);
            }
        }
        text
    }

    /// # Errors
    /// [`Error::Invalid`] if it is not ours, or others gather there for another number of parties.
    pub(super) fn read(there: Option<&[u8]>, name: &str, parties: u32) -> Result<Self> {
        let Some(there) = there else { return Ok(Sheet { parties, ..Sheet::default() }) };
        let sheet = Sheet::parse(&String::from_utf8_lossy(there)).ok_or_else(|| {
            Error::invalid(format!(
                "what is kept for the barrier \"{name}\" is not a barrier's; use another name"
            ))
        })?;
        if sheet.parties != parties && !sheet.arrived.is_empty() {
            let of = sheet.parties;
            return Err(Error::invalid(format!(
                "{of} parties gather at the barrier \"{name}\", not {parties}: all must agree, or use another name"
            )));
        }
        Ok(Sheet { parties, ..sheet })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let parties = lines.next()?.strip_prefix("barrier ")?.parse().ok()?;
        let (decided, verdicts) = lines.next()?.strip_prefix("decided ")?.split_once(' ')?;
        let opened = lines.next()?.strip_prefix("opened ")?.parse().ok()?;
        let (decided, verdicts) = (decided.parse().ok()?, verdicts.to_owned());
        let mut sheet = Sheet { parties, decided, verdicts, opened, ..Sheet::default() };
        for line in lines {
            let (kind, rest) = line.split_once(' ')?;
            let (token, party) = rest.split_once(' ')?;
            let arrival = Arrival { token: token.to_owned(), party: party.to_owned() };
            match kind {
                "m" => sheet.members.push(arrival),
                "a" => sheet.arrived.push(arrival),
                _ => return None,
            }
        }
        Some(sheet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spi::memos::VALUE_BYTES_MAX;

    fn someone(number: usize) -> Arrival {
        Arrival { token: format!("{number:08x}"), party: format!("party {number}") }
    }

    #[test]
    fn a_sheet_survives_the_trip_through_text() {
        let mut sheet = Sheet { parties: 2, ..Sheet::default() };
        for number in 0..5 {
            sheet.arrive(&someone(number));
            let again = Sheet::read(Some(sheet.text().as_bytes()), "step", 2).unwrap();
            assert_eq!(again.text(), sheet.text());
        }
        assert_eq!((sheet.opened, sheet.round(), sheet.arrived.len()), (2, 3, 1));
        for foreign in ["", "latch 2\n", "barrier x\n", "barrier 2\ndecided 0 \nopened 0\nz 1 2\n"] {
            assert!(Sheet::read(Some(foreign.as_bytes()), "step", 2).is_err(), "{foreign:?}");
        }
    }

    #[test]
    fn a_name_that_comes_again_takes_its_own_place() {
        let mut sheet = Sheet { parties: 3, ..Sheet::default() };
        sheet.arrive(&someone(0));
        sheet.arrive(&someone(1));
        sheet.arrive(&Arrival { token: "again".into(), party: someone(0).party });
        assert_eq!(sheet.arrived.len(), 2);
        assert!(sheet.has_arrived("again") && !sheet.has_arrived(&someone(0).token));
        assert!(!sheet.opens_with(&someone(0)) && sheet.opens_with(&someone(2)));
    }

    #[test]
    fn everybody_is_watched_and_nobody_watches_itself() {
        let mut sheet = Sheet { parties: 9, ..Sheet::default() };
        sheet.arrive(&someone(0));
        assert!(sheet.before(&someone(0).token).is_none());
        for number in 1..4 {
            sheet.arrive(&someone(number));
        }
        let watched: Vec<_> =
            (0..4).map(|it| sheet.before(&someone(it).token).unwrap().party.clone()).collect();
        assert_eq!(watched, ["party 3", "party 0", "party 1", "party 2"]);
    }

    #[test]
    fn all_whose_names_are_accepted_can_be_written_down() {
        for parties in [1, 50, 59, 500, 870] {
            let most = (1..=512).rev().find(|it| LIST.check_name(parties, &"x".repeat(*it)).is_ok());
            let party = "x".repeat(most.expect("a name of one byte is accepted"));
            let all = || (0..parties).map(|it| Arrival { token: format!("{it:032x}"), party: party.clone() });
            let sheet = Sheet {
                parties,
                decided: u64::MAX,
                verdicts: "o".repeat(VERDICTS_MAX),
                opened: u64::MAX,
                members: all().collect(),
                arrived: all().collect(),
            };
            let len = sheet.text().len();
            assert!(len <= VALUE_BYTES_MAX, "{parties} parties need {len} bytes");
            assert_eq!(
                len,
                LIST.head + 2 * all().count() * (36 + party.len())
                    - ("4294967295".len() - parties.to_string().len())
            );
        }
        assert!(LIST.check(870).is_ok() && LIST.check(871).is_err());
    }

    #[test]
    fn verdicts_are_found_again_until_they_are_forgotten() {
        let mut sheet = Sheet { parties: 1, ..Sheet::default() };
        for round in 1..=2000_u64 {
            let verdict = if round % 3 == 0 { Verdict::Broken(Breach::Died) } else { Verdict::Open };
            sheet.decide(verdict);
            assert!(matches!(sheet.told(round), Told::Decided(it) if it == verdict));
        }
        assert!(matches!(sheet.told(2001), Told::Gathering));
        assert!(matches!(sheet.told(1998), Told::Decided(Verdict::Broken(Breach::Died))));
        assert!(matches!(sheet.told(2000 - 1024), Told::Forgotten));
        assert!(matches!(sheet.told(2001 - 1024), Told::Decided(_)));
    }
}
