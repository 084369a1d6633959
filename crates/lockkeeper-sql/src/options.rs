//! What can be chosen about any SQL store, in code or in a URL.

use std::time::Duration;

use lockkeeper_core::Error;

/// What both dialects let you choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Common {
    pub(crate) answer_within: Duration,
    pub(crate) clean_every: Duration,
    pub(crate) create: bool,
}

/// The keys that a URL may carry for both dialects.
pub(crate) const KEYS: &str = "answer_within, clean_every, create, tls, ca, cert, key";

impl Default for Common {
    fn default() -> Self {
        Common { answer_within: Duration::from_secs(10), clean_every: Duration::from_secs(60), create: true }
    }
}

impl Common {
    /// Take a key that is ours. `false` means that it is somebody else's.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<bool, Error> {
        match key {
            "answer_within" => self.answer_within = span(key, value)?,
            "clean_every" => self.clean_every = span(key, value)?.max(Duration::from_millis(10)),
            "create" => {
                self.create = match value {
                    "yes" => true,
                    "no" => false,
                    _ => {
                        return Err(Error::invalid(format!(
                            "`create` cannot be {value:?}; it is `yes` or `no`"
                        )));
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Sort a URL's query: ours is set by `set`, the rest comes back for the driver.
pub(crate) fn split_query(
    url: &str,
    mut set: impl FnMut(&str, &str) -> Result<bool, Error>,
) -> Result<String, Error> {
    let Some((base, query)) = url.split_once('?') else {
        return Ok(url.to_owned());
    };
    let mut rest = Vec::new();
    for pair in query.split('&').filter(|it| !it.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !set(key, value)? {
            rest.push(pair);
        }
    }
    if rest.is_empty() {
        return Ok(base.to_owned());
    }
    Ok(format!("{base}?{}", rest.join("&")))
}

fn span(key: &str, value: &str) -> Result<Duration, Error> {
    let parsed = humantime::parse_duration(value);
    parsed.ok().filter(|it| !it.is_zero()).ok_or_else(|| {
        Error::invalid(format!("`{key}` cannot be {value:?}; write a span such as `30s` or `500ms`"))
    })
}

/// Whether this may stand in SQL as a name without quotes.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut chars = name.chars();
    let starts_well = chars.next().is_some_and(|it| it.is_ascii_lowercase() || it == '_');
    starts_well
        && name.len() <= 48
        && chars.all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_keys_are_taken_and_the_drivers_stay() {
        let mut common = Common::default();
        let rest = split_query("x://h/d?answer_within=5s&sslmode=disable&create=no", |key, value| {
            common.set(key, value)
        });
        assert_eq!(rest.unwrap(), "x://h/d?sslmode=disable");
        assert_eq!(common.answer_within, Duration::from_secs(5));
        assert!(!common.create);
        assert!(common.set("create", "perhaps").is_err());
        assert!(common.set("clean_every", "0s").is_err());
        assert_eq!(split_query("x://h/d?create=no", |_, _| Ok(true)).unwrap(), "x://h/d");
    }

    #[test]
    fn a_plain_name_needs_no_quotes() {
        assert!(is_plain_name("lockkeeper_2") && is_plain_name("_x"));
        for bad in ["", "2x", "Upper", "a-b", "a\"; DROP", "é"] {
            assert!(!is_plain_name(bad), "{bad}");
        }
    }
}
