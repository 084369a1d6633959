//! Secrets: random ones, and comparing them in constant time.

use std::fmt;

use lockkeeper_core::{Error, Result};

/// A fresh token: 128 random bits in hexadecimal digits.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// assert_ne!(lockkeeper_serve::random_token()?, lockkeeper_serve::random_token()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Unavailable`] if the operating system has no randomness to give.
pub fn random_token() -> Result<String> {
    Fresh::default().draw()
}

/// Random bytes for many tokens: the system is asked once for some of them. Each is used once and then wiped.
#[derive(Default)]
pub(crate) struct Fresh(Vec<[u8; 16]>);

/// Tokens for which the system is asked at a time.
const AT_A_TIME: usize = 32;

impl Fresh {
    pub(crate) fn draw(&mut self) -> Result<String> {
        if self.0.is_empty() {
            let mut some = [[0_u8; 16]; AT_A_TIME];
            let bytes = some.as_flattened_mut();
            getrandom::fill(bytes).map_err(|it| Error::unavailable("the system's random source", it))?;
            self.0.extend_from_slice(&some);
        }
        let drawn = self.0.last_mut().map(std::mem::take).unwrap_or_default();
        self.0.pop();
        Ok(format!("{:032x}", u128::from_be_bytes(drawn)))
    }
}

/// Never shown, not even to whoever debugs.
impl fmt::Debug for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fresh(…)")
    }
}

/// Something that only those who may know it can show.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Secret(text)
    }

    /// The secret itself, for whoever has earned it.
    pub(crate) fn shown(&self) -> &str {
        &self.0
    }

    /// Whether somebody showed it. Takes as long for a wrong one of the same length as for the right one.
    pub(crate) fn is(&self, shown: &str) -> bool {
        let (ours, shown) = (self.0.as_bytes(), shown.as_bytes());
        let differ = ours.iter().zip(shown).fold(0, |sum, (one, other)| sum | (one ^ other));
        ours.len() == shown.len() && std::hint::black_box(differ) == 0
    }
}

/// Never shown, not even to whoever debugs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_opens() {
        let secret = Secret::new("abcdefgh".into());
        assert!(secret.is("abcdefgh"));
        for wrong in ["", "abcdefg", "abcdefghi", "abcdefgH", "bbcdefgh"] {
            assert!(!secret.is(wrong), "{wrong}");
        }
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    #[test]
    fn no_token_is_drawn_twice() {
        let mut fresh = Fresh::default();
        let drawn: std::collections::HashSet<String> =
            (0..3 * AT_A_TIME).map(|_| fresh.draw().unwrap()).collect();
        assert_eq!(drawn.len(), 3 * AT_A_TIME);
        assert!(drawn.iter().all(|it| it.len() == 32), "{drawn:?}");
        assert_eq!(format!("{fresh:?}"), "Fresh(…)");
    }
}
