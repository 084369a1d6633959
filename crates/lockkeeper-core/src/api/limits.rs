//! What fits into a memo: all parties of a latch or a barrier stand in one, and its name begins with what it is for.

use crate::error::{Error, Result};
use crate::key::{KEY_BYTES_MAX, Key};
use crate::spi::memos::VALUE_BYTES_MAX;

/// The memo in which those who gather are written down.
pub(crate) struct PartyList {
    /// Whose it is, for people.
    pub(crate) what: &'static str,
    /// Its bytes besides the parties, at most.
    pub(crate) head: usize,
    /// The bytes of a party besides its name, and how often it stands there.
    pub(crate) each: usize,
    pub(crate) times: usize,
}

impl PartyList {
    /// How many parties there may be, with the shortest names.
    pub(crate) const fn parties_max(&self) -> usize {
        self.bytes() / (self.each + 1)
    }

    /// What is there for the parties each time.
    const fn bytes(&self) -> usize {
        (VALUE_BYTES_MAX - self.head) / self.times
    }

    /// How long each name may be where there are so many parties, so that all of them fit, whoever comes.
    fn name_bytes_max(&self, parties: u32) -> usize {
        let parties = usize::try_from(parties).unwrap_or(usize::MAX).max(1);
        let share = self.bytes() / parties;
        share.saturating_sub(self.each).min(KEY_BYTES_MAX)
    }

    /// # Errors
    /// [`Error::Invalid`] if so many can never all be written down.
    pub(crate) fn check(&self, parties: u32) -> Result<()> {
        let (what, most) = (self.what, self.parties_max());
        if usize::try_from(parties).is_ok_and(|it| it <= most) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a {what} for {parties} parties can never open: at most {most} can be written down"
        )))
    }

    /// # Errors
    /// [`Error::Invalid`] if the others might find no room beside such a name.
    pub(crate) fn check_name(&self, parties: u32, name: &str) -> Result<()> {
        let (what, len, most) = (self.what, name.len(), self.name_bytes_max(parties));
        if len <= most {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the name of a party has {len} bytes; where {parties} parties meet at a {what}, each has at most {most}: all of them are kept together"
        )))
    }
}

/// The key of a memo: what it is kept for, and what the user calls that.
///
/// # Errors
/// [`Error::Invalid`] if it is too long, in the length that the user knows.
pub(crate) fn memo_key(what: &str, given: usize, reserved: usize, text: &str) -> Result<Key> {
    let most = KEY_BYTES_MAX - reserved;
    if given <= most {
        return Key::new(text);
    }
    Err(Error::invalid(format!("{what} has {given} bytes; at most {most} are allowed")))
}
