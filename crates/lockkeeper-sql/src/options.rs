//! What can be chosen about any SQL store, in code or in a URL.

use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::kit::settings::Settings;

/// What both dialects let you choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Common {
    pub(crate) timeout: Duration,
    pub(crate) clean_every: Duration,
    pub(crate) create: bool,
}

impl Default for Common {
    fn default() -> Self {
        Common { timeout: Duration::from_secs(10), clean_every: Duration::from_secs(60), create: true }
    }
}

impl Common {
    pub(crate) fn read(settings: &mut Settings<'_>) -> Result<Self, Error> {
        let mut common = Common::default();
        settings.renamed("answer_within", "timeout")?;
        if let Some(it) = settings.span("timeout")? {
            common.set_timeout(it);
        }
        if let Some(it) = settings.span("clean_every")? {
            common.set_clean_every(it);
        }
        common.create = settings.flag("create")?.unwrap_or(common.create);
        Ok(common)
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout.max(Duration::from_millis(1));
    }

    pub(crate) fn set_clean_every(&mut self, clean_every: Duration) {
        self.clean_every = clean_every.max(Duration::from_millis(10));
    }
}

/// A URL for the driver: what stands before the `?`, and the settings that are the driver's.
pub(crate) fn for_driver(url: &str, passed: &[(&str, &str)]) -> String {
    let base = url.split('?').next().unwrap_or_default();
    let query: Vec<_> = passed.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if query.is_empty() { base.to_owned() } else { format!("{base}?{}", query.join("&")) }
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
    use lockkeeper_core::kit::settings::Form;

    use super::*;

    const FORM: Form = Form::new("SQL", "x://h");

    #[test]
    fn our_settings_are_read_and_the_drivers_passed_on() {
        let query = "timeout=5s&application_name=a%20b&create=no&clean_every=1ms";
        let mut settings = FORM.settings(query).unwrap();
        let common = Common::read(&mut settings).unwrap();
        assert_eq!((common.timeout, common.create), (Duration::from_secs(5), false));
        assert_eq!(common.clean_every, Duration::from_millis(10));
        let passed = settings.passed(&["application_name", "options"]);
        assert_eq!(for_driver(&format!("x://h/d?{query}"), &passed), "x://h/d?application_name=a%20b");
        assert_eq!(for_driver("x://h/d?create=no", &[]), "x://h/d");
        settings.finish().unwrap();
        for bad in ["create=perhaps", "clean_every=0s", "answer_within=5s"] {
            assert!(Common::read(&mut FORM.settings(bad).unwrap()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plain_name_needs_no_quotes() {
        assert!(is_plain_name("lockkeeper_2") && is_plain_name("_x"));
        for bad in ["", "2x", "Upper", "a-b", "a\"; DROP", "é"] {
            assert!(!is_plain_name(bad), "{bad}");
        }
    }
}
