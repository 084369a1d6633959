//! The section of two-phase commit: `[two_phase]` names its log and its participants.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use lockkeeper_core::{Error, Result};
use toml::Spanned;
use toml::de::DeValue;

use super::read::some_span;
use super::{Config, secret, words};

/// The table of this section.
pub(super) const TWO_PHASE: &str = "two_phase";

const PARTICIPANTS: &str = "participants";
const KEYS: &[&str] = &["log", "ttl", "sweep_every", "remember", PARTICIPANTS];

/// What a section says, with its secrets not yet filled in.
#[derive(Clone, Default)]
pub(super) struct Section {
    log: Option<String>,
    participants: BTreeMap<String, String>,
    spans: BTreeMap<&'static str, (String, Duration)>,
    /// Where it stands.
    origin: String,
}

/// The log and the participants of two-phase commit, as `[two_phase]` names them, with their secrets: not for the eyes of
/// people. `Debug` shows the names alone.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::Config;
///
/// let text = r#"
///     [two_phase]
///     log = "sqlite:/var/lib/shop/2pc.db"
///     ttl = "10s"
///
///     [two_phase.participants]
///     orders = "postgres://shop@db-1/orders"
///     stock = "mysql://shop@db-2/stock?tls=on"
/// "#;
/// let two_phase = Config::from_toml(text, "lockkeeper.toml")?.two_phase()?.expect("there is a section");
/// assert_eq!(two_phase.log.as_deref(), Some("sqlite:/var/lib/shop/2pc.db"));
/// assert_eq!(two_phase.participants["orders"], "postgres://shop@db-1/orders");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct TwoPhaseSettings {
    /// The URL of the log.
    pub log: Option<String>,
    /// The URL of each participant, by its name.
    pub participants: BTreeMap<String, String>,
    /// How long a seat stays taken without a renewal.
    pub ttl: Option<Duration>,
    /// How often other seats are looked at.
    pub sweep_every: Option<Duration>,
    /// How long finished decisions are kept.
    pub remember: Option<Duration>,
}

impl fmt::Debug for TwoPhaseSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TwoPhaseSettings")
            .field("participants", &self.participants.keys())
            .finish_non_exhaustive()
    }
}

impl Config {
    /// What `[two_phase]` says, if there is one; each `${NAME}` and `${file:PATH}` of its URLs is filled in.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a variable or file of a secret is not there.
    pub fn two_phase(&self) -> Result<Option<TwoPhaseSettings>> {
        let Some(section) = &self.two_phase else { return Ok(None) };
        let fill = |url: &String| secret::filled(url, |name| std::env::var(name).ok());
        let span = |key| section.spans.get(key).map(|it: &(String, Duration)| it.1);
        let mut participants = BTreeMap::new();
        for (name, url) in &section.participants {
            participants.insert(name.clone(), fill(url)?);
        }
        Ok(Some(TwoPhaseSettings {
            log: section.log.as_ref().map(fill).transpose()?,
            participants,
            ttl: span("ttl"),
            sweep_every: span("sweep_every"),
            remember: span("remember"),
        }))
    }

    /// An office of two-phase commit that `[two_phase]` describes, not started, with this locker for its seats.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = lockkeeper::Config::load()?;
    /// let office = config.open_two_phase(&config.connect().await?).await?.start().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`lockkeeper_twophase::Error::Invalid`] if there is no such section, or it names no log; and as
    /// [`TwoPhase::open`](lockkeeper_twophase::TwoPhase::open).
    ///
    /// # Cancel safety
    /// As [`TwoPhase::open`](lockkeeper_twophase::TwoPhase::open).
    #[cfg(feature = "twophase")]
    pub async fn open_two_phase(
        &self,
        locker: &lockkeeper_core::Locker,
    ) -> lockkeeper_twophase::Result<lockkeeper_twophase::TwoPhase> {
        use lockkeeper_twophase::{Participant, TwoPhase};

        let settings = self.two_phase()?.unwrap_or_default();
        let Some(log) = &settings.log else {
            let text = "no log of two-phase commit is named; write `log = \"…\"` under `[two_phase]`";
            return Err(Error::invalid(text).into());
        };
        let mut setup = TwoPhase::open(log, locker).await?;
        for (name, url) in &settings.participants {
            setup = setup.participant(name, Participant::of_url(url)?);
        }
        if let Some(ttl) = settings.ttl {
            setup = setup.ttl(ttl);
        }
        if let Some(span) = settings.sweep_every {
            setup = setup.sweep_every(span);
        }
        if let Some(span) = settings.remember {
            setup = setup.remember(span);
        }
        Ok(setup)
    }
}

impl Section {
    /// The section, as it would stand in a file.
    pub(super) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n[two_phase]  # {}", self.origin)?;
        if let Some(log) = &self.log {
            writeln!(f, "log = {:?}", secret::hidden(log))?;
        }
        for (key, (shown, _)) in &self.spans {
            writeln!(f, "{key} = {shown:?}")?;
        }
        if !self.participants.is_empty() {
            writeln!(f, "\n[two_phase.participants]")?;
        }
        for (name, url) in &self.participants {
            writeln!(f, "{name} = {:?}", secret::hidden(url))?;
        }
        Ok(())
    }
}

/// Where something stands in the file.
type At<'a> = &'a dyn Fn(&Range<usize>) -> String;

/// Read the section.
pub(super) fn read(value: &Spanned<DeValue<'_>>, at: At<'_>) -> Result<Section> {
    let mut section = Section { origin: at(&value.span()), ..Section::default() };
    let how = "write `[two_phase]` and under it `log = \"…\"`";
    let table = value.get_ref().as_table();
    let table = table
        .ok_or_else(|| Error::invalid(format!("{}: `two_phase` is a table: {how}", at(&value.span()))))?;
    for (key, value) in table {
        let here = |it: Error| Error::invalid(format!("{}: {it}", at(&key.span())));
        match key.get_ref().as_ref() {
            "log" => section.log = Some(text("log", value.get_ref()).map_err(here)?),
            PARTICIPANTS => section.participants = participants(value.get_ref(), at).map_err(here)?,
            other => {
                let known = KEYS.iter().copied().find(|it| *it == other).ok_or_else(|| {
                    let (help, other) = (words::help(other, KEYS), other.escape_debug());
                    here(Error::invalid(format!("two-phase commit has no key `{other}`; {help}")))
                })?;
                let shown = text(known, value.get_ref()).map_err(here)?;
                let span = some_span(known, &shown).map_err(here)?;
                section.spans.insert(known, (shown, span));
            }
        }
    }
    Ok(section)
}

fn text(key: &str, value: &DeValue<'_>) -> Result<String> {
    match value {
        DeValue::String(it) if !it.is_empty() => Ok(it.to_string()),
        _ => Err(Error::invalid(format!("`{}` is a text", key.escape_debug()))),
    }
}

fn participants(value: &DeValue<'_>, at: At<'_>) -> Result<BTreeMap<String, String>> {
    let how = "write `[two_phase.participants]` and under it `NAME = \"URL\"` for each";
    let table =
        value.as_table().ok_or_else(|| Error::invalid(format!("`participants` is a table: {how}")))?;
    let read = |(name, url): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let name: &toml::de::DeString<'_> = name.get_ref();
        let url = text(name, url.get_ref()).map_err(|_| {
            Error::invalid(format!("{}: `{}` is no URL: {how}", at(&url.span()), name.escape_debug()))
        })?;
        Ok((name.to_string(), url))
    };
    table.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
[two_phase]
log = \"postgres://me:secret@db-1/log\"
ttl = \"5s\"
remember = \"1h\"
[two_phase.participants]
orders = \"postgres://me:secret@db-1/orders\"
stock = \"mysql://me:${2PC_NO_SUCH_VARIABLE}@db-2/stock\"
";

    #[test]
    fn a_section_names_log_and_participants_and_shows_no_secret() {
        let config = Config::from_toml(&TEXT.replace("${2PC_NO_SUCH_VARIABLE}", "secret"), "x.toml").unwrap();
        let found = config.two_phase().unwrap().unwrap();
        assert_eq!(found.log.as_deref(), Some("postgres://me:secret@db-1/log"));
        assert_eq!(found.participants.keys().collect::<Vec<_>>(), ["orders", "stock"]);
        assert_eq!((found.ttl, found.sweep_every), (Some(Duration::from_secs(5)), None));
        assert_eq!(found.remember, Some(Duration::from_secs(3600)));
        let shown = format!("{config}{config:?}{found:?}");
        assert!(!shown.contains("secret") && shown.contains("stock = \"mysql://***@db-2/stock\""), "{shown}");
        let again = Config::from_toml(&config.to_string(), "y.toml").unwrap().two_phase().unwrap().unwrap();
        assert_eq!(again.ttl, found.ttl, "what is shown can be read");
        assert!(Config::default().two_phase().unwrap().is_none());
        let error = Config::from_toml(TEXT, "x.toml").unwrap().two_phase().unwrap_err().to_string();
        assert!(error.contains("2PC_NO_SUCH_VARIABLE"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, said) in [
            ("two_phase = 5", "x.toml:1: `two_phase` is a table"),
            ("[two_phas]\nlog = \"sqlite:x\"", "did you mean `two_phase`?"),
            (
                "[two_phase]\nlogs = \"sqlite:x\"",
                "x.toml:2: two-phase commit has no key `logs`; did you mean `log`?",
            ),
            ("[two_phase]\nlog = 5", "x.toml:2: `log` is a text"),
            ("[two_phase]\nttl = \"soon\"", "x.toml:2: `ttl` cannot be \"soon\""),
            ("[two_phase]\nsweep_every = \"0s\"", "greater than 0"),
            ("[two_phase]\nparticipants = 5", "`participants` is a table"),
            ("[two_phase.participants]\norders = 5", "x.toml:2: `orders` is no URL"),
        ] {
            let error = Config::from_toml(text, "x.toml").unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
