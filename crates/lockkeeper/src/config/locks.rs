//! Sections of single locks: `[locks."mail"]` says how that lock is shared.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use lockkeeper_core::{Error, Key, Load, Result};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::words;

/// The table of these sections.
pub(super) const LOCKS: &str = "locks";

const KEYS: &[&str] = &["shared", "permits"];

const HOW: &str = "write `[locks.\"NAME\"]` and under it `shared = true` or `permits = \"2/5\"`";

/// What a section says.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) load: Load,
    /// Where it stands.
    origin: String,
}

impl Share {
    /// The section, as it would stand in a file.
    pub(super) fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n[locks.{name:?}]  # {}", self.origin)?;
        match self.load {
            Load::MUTEX => writeln!(f, "shared = false"),
            Load::READER => writeln!(f, "shared = true"),
            load => writeln!(f, "permits = \"{}/{}\"", load.weight, load.capacity),
        }
    }
}

/// Where something stands in the file.
type At<'a> = &'a dyn Fn(&Range<usize>) -> String;

/// Read all sections.
pub(super) fn read(value: &Spanned<DeValue<'_>>, at: At<'_>) -> Result<BTreeMap<String, Share>> {
    let table = value.get_ref().as_table();
    let table =
        table.ok_or_else(|| Error::invalid(format!("{}: `locks` is a table: {HOW}", at(&value.span()))))?;
    table.iter().map(|(name, value)| section(name, value.get_ref(), at)).collect()
}

fn section(name: &Spanned<DeString<'_>>, value: &DeValue<'_>, at: At<'_>) -> Result<(String, Share)> {
    let origin = at(&name.span());
    let here = |it: Error| Error::invalid(format!("{origin}: {it}"));
    let key = Key::new(name.get_ref()).map_err(here)?;
    let table = value.as_table().ok_or_else(|| {
        here(Error::invalid(format!("`locks.{}` is a table: {HOW}", name.get_ref().escape_debug())))
    })?;
    let load = share(table, at)?;
    Ok((key.to_string(), Share { load, origin }))
}

fn share(table: &DeTable<'_>, at: At<'_>) -> Result<Load> {
    let (mut shared, mut asked) = (false, None);
    for (key, value) in table {
        let here = |it: Error| Error::invalid(format!("{}: {it}", at(&key.span())));
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("shared", DeValue::Boolean(it)) => shared = *it,
            ("shared", _) => return Err(here(Error::invalid("`shared` is `true` or `false`"))),
            ("permits", DeValue::String(it)) => {
                let refused = |error| here(Error::invalid(format!("`permits` cannot be {it:?}: {error}")));
                asked = Some(permits(it).map_err(refused)?);
            }
            ("permits", _) => {
                return Err(here(Error::invalid(
                    "`permits` is a text: how many of how many, such as \"2/5\"",
                )));
            }
            (other, DeValue::Table(_)) => {
                let other = other.escape_debug();
                return Err(here(Error::invalid(format!(
                    "`{other}` is a table; a name with a dot is written in quotes: `[locks.\"a.b\"]`"
                ))));
            }
            (other, _) => {
                let (help, other) = (words::help(other, KEYS), other.escape_debug());
                return Err(here(Error::invalid(format!("a lock has no key `{other}`; {help}"))));
            }
        }
        if shared && asked.is_some() {
            let text = "`shared` and `permits` both say how the lock is shared; leave one out";
            return Err(here(Error::invalid(text)));
        }
    }
    Ok(asked.unwrap_or(if shared { Load::READER } else { Load::MUTEX }))
}

/// Permits as people write them: `2/5` is two of five.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::{Load, config};
///
/// assert_eq!(config::permits("2/5")?, Load::new(2, 5));
/// assert!(config::permits("6/5").is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] says what is wrong with it.
pub fn permits(text: &str) -> Result<Load> {
    let number = |it: &str| -> Option<u32> {
        it.bytes().all(|it| it.is_ascii_digit()).then(|| it.parse().ok()).flatten()
    };
    let numbers = text.split_once('/').and_then(|(count, of)| Some((number(count)?, number(of)?)));
    let Some((count, of)) = numbers else {
        return Err(Error::invalid(format!(
            "permits are written as how many of how many, whole numbers up to {}, for example `2/5`",
            u32::MAX
        )));
    };
    if of == 0 {
        return Err(Error::invalid("of 0 permits none can be granted; allow at least 1"));
    }
    if count == 0 {
        return Err(Error::invalid("0 permits are nothing to hold; ask for at least 1"));
    }
    if of < count {
        return Err(Error::invalid(format!(
            "{count} permits of {of} can never be granted; ask for {of} at most, or allow more"
        )));
    }
    Ok(Load::new(count, of))
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn config(text: &str) -> Result<Config> {
        Config::from_toml(text, "x.toml")
    }

    #[test]
    fn sections_say_how_a_lock_is_shared() {
        let text = "[locks.\"mail.out\"]\npermits = \"2/5\"\n[locks.prices]\nshared = true\n[locks.plain]\nshared = false";
        let config = config(text).unwrap();
        assert_eq!(config.share("mail.out"), Some(Load::new(2, 5)));
        assert_eq!(config.share("prices"), Some(Load::READER));
        assert_eq!((config.share("plain"), config.share("other")), (Some(Load::MUTEX), None));
        let shown = config.to_string();
        for part in [
            "[locks.\"mail.out\"]  # x.toml:1\npermits = \"2/5\"\n",
            "[locks.\"prices\"]  # x.toml:3\nshared = true\n",
        ] {
            assert!(shown.contains(part), "{shown}");
        }
        let again = Config::from_toml(&shown, "y.toml").unwrap();
        assert_eq!(again.share("mail.out"), Some(Load::new(2, 5)), "what is shown can be read");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, said) in [
            ("locks = 5", "x.toml:1: `locks` is a table"),
            ("[lock.\"a\"]\nshared = true", "did you mean `locks`?"),
            ("[locks]\nshared = true", "x.toml:2: `locks.shared` is a table: write `[locks.\"NAME\"]`"),
            ("[locks.a]\nshard = true", "x.toml:2: a lock has no key `shard`; did you mean `shared`?"),
            ("[locks.a]\npermit = \"1/5\"", "did you mean `permits`?"),
            ("[locks.a]\ncolour = 1", "there are `shared`, `permits`"),
            ("[locks.a]\nshared = \"yes\"", "`shared` is `true` or `false`"),
            ("[locks.a]\npermits = 5", "`permits` is a text"),
            (
                "[locks.a]\npermits = \"6/5\"",
                "x.toml:2: `permits` cannot be \"6/5\": 6 permits of 5 can never",
            ),
            ("[locks.a]\nshared = true\npermits = \"1/5\"", "leave one out"),
            ("[locks.a.b]\nshared = true", "written in quotes"),
            ("[locks.\"\"]\nshared = true", "x.toml:1: "),
        ] {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn permits_are_how_many_of_how_many() {
        for (text, load) in [("1/1", Load::MUTEX), ("2/5", Load::new(2, 5)), ("5/5", Load::new(5, 5))] {
            assert_eq!(permits(text).unwrap(), load);
        }
        for (text, said) in [
            ("0/5", "nothing to hold"),
            ("2/0", "none can be granted"),
            ("0/0", "none can be granted"),
            ("6/5", "can never be granted"),
            ("x", "how many of how many"),
            ("5", "how many of how many"),
            ("-1/5", "how many of how many"),
            ("+1/5", "how many of how many"),
            ("1/-5", "how many of how many"),
            ("1.5/5", "how many of how many"),
            (" 1/5", "how many of how many"),
            ("1/5/7", "how many of how many"),
            ("/", "how many of how many"),
            ("", "how many of how many"),
            ("1/4294967296", "up to 4294967295"),
        ] {
            let error = permits(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }
}
