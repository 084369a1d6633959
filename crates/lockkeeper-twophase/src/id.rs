//! Names: of a log, of a transaction, and of its branches at each participant.

use std::fmt;
use std::str::FromStr;

use lockkeeper_core::clock::time_of_day;

use crate::error::Error;

/// Small letters and digits without those that people confuse.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const PREFIX: &str = "lk1";
/// The formatID of our branches on MySQL and MariaDB, for people: "LK2P".
pub(crate) const FORMAT: u32 = 0x4C4B_3250;
/// The longest name of a participant.
pub(crate) const NAME_MAX: usize = 48;

/// The largest number of a seat, so that it fits into a name.
pub(crate) const SEATS_MAX: u32 = 1024;

/// `value` in exactly `width` digits of base 32, the largest first.
fn digits(value: u64, width: usize) -> String {
    let digit = |at: usize| {
        let shift = 5 * (width - 1 - at);
        let part = if shift < 64 { value >> shift } else { 0 };
        char::from(DIGITS[usize::try_from(part & 31).unwrap_or(0)])
    };
    (0..width).map(digit).collect()
}

fn number(text: &str, width: usize) -> Option<u64> {
    if text.len() != width {
        return None;
    }
    text.bytes().try_fold(0_u64, |sum, byte| {
        let digit = DIGITS.iter().position(|it| *it == byte)?;
        sum.checked_mul(32)?.checked_add(u64::try_from(digit).ok()?)
    })
}

/// A number that nobody else draws.
///
/// # Errors
/// [`Error::Unavailable`] if the system has no randomness.
pub(crate) fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(|it| Error::unavailable("the system's source of randomness", it))
}

/// The name of a transaction: which log decides about it, which seat and which epoch of it began it, and when.
///
/// It is the same text in the log and at every participant, so that `pg_prepared_xacts` and `XA RECOVER` tell people whose a
/// branch is. Keep it if you may have to ask [`Office::verdict`](crate::Office::verdict).
///
/// ```
/// use lockkeeper_twophase::TransactionId;
///
/// let id: TransactionId = "lk1.0123456789abc.0.000000000001z.006abcdeghjkmnpq".parse()?;
/// assert_eq!(id.seat(), 0);
/// assert!("somebody else's".parse::<TransactionId>().is_err());
/// # Ok::<(), lockkeeper_twophase::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId(String);

impl TransactionId {
    /// `lone`: it may be committed by one participant alone, and then the log does not know of it.
    pub(crate) fn new(log: &LogId, seat: u32, fence: u64, lone: bool) -> Result<Self, Error> {
        // The seconds say only what was forgotten together: see `Log::forget`. Thirty-nine random bits within one second of
        // one epoch of one seat, and one that tells whom to ask.
        let which = (random()? >> 24) & !1 | u64::from(lone);
        let (when, which) = (digits(time_of_day().as_secs(), 8), digits(which, 8));
        Ok(TransactionId(format!("{PREFIX}.{}.{seat}.{}.{when}{which}", log.0, digits(fence, 13))))
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn part(&self, at: usize) -> &str {
        self.0.split('.').nth(at).unwrap_or("")
    }

    /// The log that decides about it.
    pub fn log(&self) -> &str {
        self.part(1)
    }

    /// The seat of the coordinator that began it.
    pub fn seat(&self) -> u32 {
        self.part(2).parse().unwrap_or(0)
    }

    /// The epoch of that seat: the fence under which alone it can be decided.
    pub fn fence(&self) -> u64 {
        number(self.part(3), 13).unwrap_or(0)
    }

    /// How long ago that is by our clock, at least nothing.
    pub fn age(&self) -> std::time::Duration {
        time_of_day().saturating_sub(std::time::Duration::from_secs(self.begun()))
    }

    /// Whether a participant alone may have committed it, without a row in the log.
    pub(crate) fn is_lone(&self) -> bool {
        self.part(4).get(8..).and_then(|it| number(it, 8)).is_some_and(|it| it & 1 == 1)
    }

    /// When it was begun, in seconds since 1970, by the clock of whoever began it.
    pub fn begun(&self) -> u64 {
        self.part(4).get(..8).and_then(|it| number(it, 8)).unwrap_or(0)
    }
}

/// How the names end that were begun in this second, at the earliest.
pub(crate) fn ending(seconds: u64) -> String {
    digits(seconds, 8)
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for TransactionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parts: Vec<&str> = text.split('.').collect();
        let ours = match parts[..] {
            [prefix, log, seat, fence, own] => {
                let seat: Option<u32> = seat.parse().ok().filter(|it: &u32| it.to_string() == seat);
                let own = own.get(..8).zip(own.get(8..));
                prefix == PREFIX
                    && number(log, 13).is_some()
                    && seat.is_some_and(|it| it < SEATS_MAX)
                    && number(fence, 13).is_some()
                    && own
                        .is_some_and(|(when, which)| number(when, 8).is_some() && number(which, 8).is_some())
            }
            _ => false,
        };
        if ours {
            return Ok(TransactionId(text.to_owned()));
        }
        Err(Error::invalid(format!(
            "{text:?} is no name of a transaction; they look like lk1.0123456789abc.0.000000000001z.006abcdeghjkmnpq"
        )))
    }
}

/// The name of a log, drawn once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogId(pub(crate) String);

impl LogId {
    pub(crate) fn draw() -> Result<Self, Error> {
        // Thirteen digits hold 65 bits.
        Ok(LogId(digits(random()?, 13)))
    }

    pub(crate) fn read(text: String) -> Option<Self> {
        number(&text, 13).map(|_| LogId(text))
    }

    /// The lock of a seat.
    pub(crate) fn seat(&self, seat: u32) -> String {
        format!("2pc/{}/{seat}", self.0)
    }
}

/// One participant's part of a transaction: its number in it, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BranchName {
    pub(crate) id: TransactionId,
    pub(crate) n: u32,
    pub(crate) participant: String,
}

impl BranchName {
    /// The second part of an XA name.
    pub(crate) fn qualifier(&self) -> String {
        format!("{}.{}", self.n, self.participant)
    }

    /// The name of a prepared transaction of PostgreSQL.
    pub(crate) fn gid(&self) -> String {
        format!("{}:{}", self.id, self.qualifier())
    }

    /// As SQL of MySQL and MariaDB has it. Hexadecimal digits cannot end the literal.
    pub(crate) fn xid(&self) -> String {
        format!("X'{}',X'{}',{FORMAT}", hex(self.id.as_str()), hex(&self.qualifier()))
    }

    /// A branch by its two names; `None` if it is not one of ours, which is never touched.
    pub(crate) fn read(id: &str, qualifier: &str) -> Option<Self> {
        let (n, participant) = qualifier.split_once('.')?;
        check_name(participant).ok()?;
        let number: u32 = n.parse().ok().filter(|it: &u32| it.to_string() == n)?;
        Some(BranchName { id: id.parse().ok()?, n: number, participant: participant.to_owned() })
    }

    pub(crate) fn read_gid(gid: &str) -> Option<Self> {
        let (id, qualifier) = gid.split_once(':')?;
        BranchName::read(id, qualifier)
    }
}

/// Each byte as two digits.
pub(crate) fn hex(text: &str) -> String {
    let digit = |it: u8| char::from_digit(u32::from(it), 16).unwrap_or('0');
    text.bytes().flat_map(|it| [digit(it >> 4), digit(it & 15)]).collect()
}

/// Whether a participant may have this name.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_' || it == b'-';
    if name.is_empty() || NAME_MAX < name.len() || !name.bytes().all(plain) {
        return Err(Error::invalid(format!(
            "a participant cannot be called {name:?}; use small letters, digits, `_` and `-`, at most {NAME_MAX}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_as_they_were_written() {
        let log = LogId::draw().unwrap();
        let id = TransactionId::new(&log, 17, u64::MAX, true).unwrap();
        assert!(id.as_str().len() <= 64, "{id}");
        assert_eq!(id.to_string().parse::<TransactionId>().unwrap(), id);
        assert_eq!((id.log(), id.seat(), id.fence()), (log.0.as_str(), 17, u64::MAX));
        assert!(id.begun() + 5 > time_of_day().as_secs());
        assert!(id.is_lone() && !TransactionId::new(&log, 17, 1, false).unwrap().is_lone());
        assert!(id.as_str()[id.as_str().len() - 16..] < *ending(id.begun() + 1));
        let branch = BranchName { id, n: 3, participant: "a".repeat(NAME_MAX) };
        assert!(branch.gid().len() < 200 && branch.qualifier().len() <= 64);
        assert_eq!(BranchName::read_gid(&branch.gid()), Some(branch));
    }

    #[test]
    fn what_is_not_ours_is_not_read() {
        let good = "lk1.0123456789abc.0.000000000001z.006abcdeghjkmnpq";
        assert!(BranchName::read_gid(&format!("{good}:0.orders")).is_some());
        for gid in [
            "",
            "order-42",
            good,
            "lk1.0123456789abc.00.000000000001z.006abcdeghjkmnpq:0.orders",
            "lk1.0123456789abc.1024.000000000001z.006abcdeghjkmnpq:0.orders",
            "lk2.0123456789abc.0.000000000001z.006abcdeghjkmnpq:0.orders",
            "lk1.0123456789abu.0.000000000001z.006abcdeghjkmnpq:0.orders",
            "lk1.0123456789abc.0.000000000001z.006abcdeghjkmnpq:0.Orders",
            "lk1.0123456789abc.0.000000000001z.006abcdeghjkmnpq:00.orders",
            "lk1.0123456789abc.0.000000000001z.006abcdeghjkmnp\u{e9}:0.orders",
        ] {
            assert_eq!(BranchName::read_gid(gid), None, "{gid}");
        }
    }

    #[test]
    fn odd_names_are_refused() {
        for name in ["", "a b", "a.b", "a:b", "\u{e9}", "Orders", "a'", &"a".repeat(49)] {
            assert!(matches!(check_name(name), Err(Error::Invalid { .. })), "{name}");
        }
        assert!(check_name("orders-2_eu").is_ok());
    }
}
