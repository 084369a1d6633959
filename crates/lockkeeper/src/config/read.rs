//! Reading settings: from TOML and from variables, through one gate that checks them.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_core::{Error, Result};
use toml::de::{DeTable, DeValue};

use super::{Config, Url, locks, secret, two_phase, words};

/// The table of the store's own options.
pub(super) const STORE: &str = "store";

/// Every setting.
pub(super) const KEYS: &[&str] = &[
    "system",
    "url",
    "url_file",
    "ttl",
    "max_hold",
    "wait",
    "outage_max",
    "waiters_max",
    "depth_max",
    "hand_on_count_max",
    "hand_on_span_max",
    "warm",
    "warm_max",
];

const PREFIX: &str = "LOCKKEEPER_";
/// Variables that are no settings: the file's name, what `lockkeeper run` tells its command, and what `lockkeeper 2pc` reads.
const NO_SETTINGS: &[&str] =
    &["CONFIG", "NAME", "FENCE", "FENCES", "RUN", "CGROUP", "2PC_LOG", "2PC_PARTICIPANTS"];
/// Beginnings of variables that this project's own tests use.
const OF_TESTS: &[&str] = &["KIT_", "SIM_", "TEST_", "BENCH_"];

impl Config {
    /// Read a file's text.
    pub(super) fn read_toml(&mut self, text: &str, name: &str) -> Result<()> {
        // The parser's own words quote the line, which may hold a password.
        let table = DeTable::parse(text).map_err(|it| {
            let line = it.span().map_or_else(String::new, |it| format!(":{}", line_of(text, &it)));
            Error::invalid(format!("{name}{line}: this is not TOML: {}", it.message()))
        })?;
        for (key, value) in table.get_ref() {
            let origin = format!("{name}:{}", line_of(text, &key.span()));
            let here = |it: Error| Error::invalid(format!("{origin}: {it}"));
            if key.get_ref() == locks::LOCKS {
                self.locks = locks::read(value, &|at| format!("{name}:{}", line_of(text, at)))?;
            } else if key.get_ref() == two_phase::TWO_PHASE {
                let section = two_phase::read(value, &|at| format!("{name}:{}", line_of(text, at)))?;
                self.two_phase = Some(section);
            } else if key.get_ref() == STORE {
                self.read_store(value.get_ref(), origin.clone()).map_err(here)?;
            } else {
                let known = known(key.get_ref()).map_err(here)?;
                let value = plain(known, value.get_ref()).map_err(here)?;
                self.set(known, &value, &origin).map_err(here)?;
            }
        }
        if self.set.contains_key("url") && self.set.contains_key("url_file") {
            return Err(Error::invalid(format!(
                "{name}: `url` and `url_file` both name the store; leave one out"
            )));
        }
        Ok(())
    }

    /// Read variables. They are stronger than what was read before.
    pub(super) fn read_variables(&mut self, all: impl Iterator<Item = (OsString, OsString)>) -> Result<()> {
        for (name, value) in all {
            let Some(key) = name.to_str().and_then(|it| it.strip_prefix(PREFIX)) else { continue };
            // An empty variable is how a shell script unsets one.
            let is_other = NO_SETTINGS.contains(&key) || OF_TESTS.iter().any(|it| key.starts_with(it));
            if is_other || value.is_empty() {
                continue;
            }
            let origin = format!("{PREFIX}{key}");
            let here = |it: Error| Error::invalid(format!("the variable {origin}: {it}"));
            let value = value.to_str().ok_or_else(|| here(Error::invalid("its value is not UTF-8")))?;
            if !KEYS.iter().any(|it| it.to_uppercase() == key) {
                let known: Vec<_> = KEYS.iter().map(|it| format!("{PREFIX}{}", it.to_uppercase())).collect();
                let known: Vec<_> = known.iter().map(String::as_str).collect();
                let help = words::help(&origin, &known);
                return Err(Error::invalid(format!("there is no setting `{origin}`; {help}")));
            }
            self.set(&key.to_lowercase(), value, &origin).map_err(here)?;
        }
        Ok(())
    }

    /// The options of the store, which its backend checks when it is opened.
    fn read_store(&mut self, value: &DeValue<'_>, origin: String) -> Result<()> {
        let table = value.as_table().ok_or_else(|| Error::invalid("`store` is a table: write `[store]`"))?;
        for (key, value) in table {
            let (key, value) = (key.get_ref(), plain(key.get_ref(), value.get_ref())?);
            if [key.as_ref(), &value]
                .iter()
                .any(|it| it.contains(['&', '#', '?', '=']) || it.chars().any(char::is_control))
            {
                return Err(Error::invalid(format!(
                    "the option `{}` holds a character that a URL cannot carry (`&`, `#`, `?`, `=`)",
                    key.escape_debug()
                )));
            }
            self.store.insert(key.to_string(), value);
        }
        self.set.insert(STORE, (String::new(), origin));
        Ok(())
    }

    /// Check and take one setting.
    fn set(&mut self, key: &str, value: &str, origin: &str) -> Result<()> {
        let known = known(key)?;
        let mut shown = format!("{value:?}");
        match known {
            "system" => {
                crate::process::check_system(value)?;
                self.system = Some(value.to_owned());
            }
            "url" => {
                shown = format!("{:?}", secret::hidden(value));
                self.forget_store(origin);
                self.url = Some(Url::Given(value.to_owned()));
            }
            "url_file" => {
                self.forget_store(origin);
                self.url = Some(Url::InFile(PathBuf::from(value)));
            }
            "ttl" => self.ttl = Some(some_span(known, value)?),
            "max_hold" => self.max_hold = Some(some_span(known, value)?),
            "wait" => self.wait = Some(span(known, value)?),
            "outage_max" => self.outage_max = Some(span(known, value)?),
            "hand_on_span_max" => self.hand_on_span_max = Some(span(known, value)?),
            "waiters_max" => self.waiters_max = Some(count(known, value)?),
            "depth_max" => self.depth_max = Some(count(known, value)?),
            "warm" => self.warm = Some(yes_or_no(known, value)?),
            "warm_max" => self.warm_max = Some(count(known, value)?),
            _ => self.hand_on_count_max = Some(count(known, value)?),
        }
        if known.ends_with("_max") && value.parse::<u64>().is_ok() {
            value.clone_into(&mut shown);
        }
        self.set.insert(known, (shown, origin.to_owned()));
        Ok(())
    }
}

impl Config {
    /// A variable names another store than the file: the file's options are not for that one. Two names
    /// in one file are refused when all of it is read.
    fn forget_store(&mut self, origin: &str) {
        if origin.starts_with(PREFIX) {
            self.set.retain(|key, _| !["url", "url_file", STORE].contains(key));
            self.store.clear();
        }
    }
}

/// The key of this name, if there is one.
fn known(key: &str) -> Result<&'static str> {
    KEYS.iter().copied().find(|it| *it == key).ok_or_else(|| {
        let all = [KEYS, &[STORE, locks::LOCKS, two_phase::TWO_PHASE]].concat();
        Error::invalid(format!("there is no key `{}`; {}", key.escape_debug(), words::help(key, &all)))
    })
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    1 + text.bytes().take(span.start).filter(|it| *it == b'\n').count()
}

/// A value as the text that a variable would hold.
fn plain(key: &str, value: &DeValue<'_>) -> Result<String> {
    match value {
        DeValue::String(it) => Ok(it.to_string()),
        DeValue::Integer(it) => Ok(it.as_str().to_owned()),
        DeValue::Boolean(it) => Ok(it.to_string()),
        other => Err(Error::invalid(format!(
            "`{}` is a {}; it must be a text, a number or a boolean",
            key.escape_debug(),
            other.type_str()
        ))),
    }
}

/// A span; `forever` is one without end.
fn span(key: &str, value: &str) -> Result<Duration> {
    if value == "forever" {
        return Ok(Duration::MAX);
    }
    humantime::parse_duration(value).map_err(|it| {
        Error::invalid(format!(
            "`{key}` cannot be {value:?}: {it}; write a duration such as \"10s\" or \"500ms\""
        ))
    })
}

pub(super) fn some_span(key: &str, value: &str) -> Result<Duration> {
    match span(key, value)? {
        Duration::ZERO => Err(Error::invalid(format!("`{key}` must be greater than 0"))),
        span => Ok(span),
    }
}

fn yes_or_no(key: &str, value: &str) -> Result<bool> {
    value.parse().map_err(|_| Error::invalid(format!("`{key}` cannot be {value:?}: write `true` or `false`")))
}

fn count<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
    value.replace('_', "").parse().map_err(|_| {
        Error::invalid(format!("`{key}` cannot be {value:?}: write a whole number that is not negative"))
    })
}

#[cfg(test)]
mod tests;
