//! The settings of a store's URL: each is asked for by name, and whatever is left over is answered with what was meant.
//! For authors of backends.
//!
//! A password never appears in what is said: a URL is not repeated, nor is anything after its `?` if an `@` stands
//! there, which means that a password with a `?` in it was not escaped.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use crate::error::Error;
use crate::kit::address::{Address, Secret, decoded};
use crate::kit::nearest;
use crate::kit::tls::Tls;

/// How the URLs of a store look, for what is said about one that cannot be used.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::kit::settings::Form;
///
/// const FORM: Form = Form::new("shop", "shop://host[:port][/room]");
///
/// let address = FORM.address("shop://one/room?timeout=2s")?;
/// let mut settings = FORM.settings(address.query)?;
/// assert_eq!(settings.span("timeout")?.map(|it| it.as_secs()), Some(2));
/// settings.finish()?;
/// let said = FORM.wrong("there is no room").to_string();
/// assert!(said.contains("the shop URL cannot be used: there is no room; it should look like shop://host"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Form {
    store: &'static str,
    looks: &'static str,
}

impl Form {
    /// The store's name for people, and what a URL of it looks like.
    pub const fn new(store: &'static str, looks: &'static str) -> Self {
        Form { store, looks }
    }

    /// That a URL cannot be used, why, and how one looks. It is not repeated: it may hold a password.
    pub fn wrong(&self, what: impl Display) -> Error {
        Error::invalid(format!(
            "the {} URL cannot be used: {what}; it should look like {}",
            self.store, self.looks
        ))
    }

    /// Take a URL apart.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has no scheme, or its user or password cannot be decoded.
    pub fn address<'u>(&self, url: &'u str) -> Result<Address<'u>, Error> {
        Address::read(url).map_err(|it| self.wrong(it))
    }

    /// The settings after the `?` of a URL.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one is given more than once.
    pub fn settings<'u>(&self, query: &'u str) -> Result<Settings<'u>, Error> {
        let pairs = query.split('&').filter(|it| !it.is_empty());
        let given: Vec<_> = pairs.map(|it| it.split_once('=').unwrap_or((it, ""))).collect();
        let settings = Settings { form: *self, given, known: Vec::new(), is_secret: query.contains('@') };
        let names = settings.given.iter().map(|it| it.0);
        if let Some((_, twice)) =
            names.enumerate().find(|(at, it)| settings.given[..*at].iter().any(|b| b.0 == *it))
        {
            return Err(self.wrong(format!("{} is given more than once", settings.shown(twice))));
        }
        Ok(settings)
    }
}

/// The settings of one URL. Every question says which setting there is; [`finish`](Settings::finish) refuses the others.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::kit::settings::Form;
///
/// const FORM: Form = Form::new("shop", "shop://[user:password@]host");
///
/// let address = FORM.address("shop://me:s%65same@one?timeuot=2s&rows=7&tls=on&depth=deep&old=1")?;
/// let mut settings = FORM.settings(address.query)?;
/// assert_eq!(settings.span("timeout")?, None);
/// assert_eq!(settings.number::<u32>("rows")?, Some(7));
/// assert_eq!(settings.flag("create")?, None);
/// assert_eq!(settings.choice("depth", &[("deep", 9), ("flat", 1)])?, Some(9));
/// assert_eq!(settings.text("prefix")?, None);
/// assert_eq!(settings.read("colour", "red", |it| (it == "red").then_some(()))?, None);
/// assert!(settings.tls(false)?.is_some());
/// let (user, password) = settings.login(&address)?; // of the URL, or with the file of `password_file`
/// assert_eq!((user.as_deref(), password.is_some()), (Some("me"), true));
/// assert_eq!(settings.passed(&["application_name"]), []); // for the driver, as they were written
/// assert!(settings.renamed("old", "new").unwrap_err().to_string().contains("`new`"));
/// let said = settings.finish().unwrap_err().to_string();
/// assert!(said.contains("did you mean `timeout`?") && !said.contains("sesame"), "{said}");
/// # Ok(())
/// # }
/// ```
pub struct Settings<'u> {
    form: Form,
    /// What nobody has asked for yet: names and values as they were written.
    given: Vec<(&'u str, &'u str)>,
    /// What was asked for.
    known: Vec<&'static str>,
    /// Whether part of a password may stand here.
    is_secret: bool,
}

/// Shows no value: one may be a password.
impl fmt::Debug for Settings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("known", &self.known).finish_non_exhaustive()
    }
}

impl<'u> Settings<'u> {
    fn take(&mut self, name: &'static str) -> Option<&'u str> {
        self.known.push(name);
        let at = self.given.iter().position(|it| it.0 == name)?;
        Some(self.given.remove(at).1)
    }

    /// What was given, if it may be shown.
    fn shown(&self, given: &str) -> String {
        if self.is_secret {
            return "a setting (which is not shown, because an `@` follows: in a password, write ? as %3F and @ as %40)"
                .to_owned();
        }
        let given: String = given.escape_debug().take(40).collect();
        format!("`{given}`")
    }

    /// A setting as a text.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a `%` in it is not followed by two hexadecimal digits of UTF-8.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, Error> {
        let form = self.form;
        let decode = |it| decoded(it).map_err(|it| form.wrong(format!("`{name}`: {it}")));
        self.take(name).map(decode).transpose()
    }

    /// A setting that `read` understands; `right` says what it understands.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `read` gives nothing.
    pub fn read<T>(
        &mut self,
        name: &'static str,
        right: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        if let Some(it) = read(&text) {
            return Ok(Some(it));
        }
        Err(self.form.wrong(format!("`{name}` cannot be {}; write {right}", self.shown(&text))))
    }

    /// A duration greater than 0, such as `500ms`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none.
    pub fn span(&mut self, name: &'static str) -> Result<Option<Duration>, Error> {
        self.read(name, "a duration such as `500ms`, `2s` or `1m`", span_of)
    }

    /// `yes` or `on`, `no` or `off`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is neither.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, Error> {
        self.choice(name, &[("yes", true), ("no", false), ("on", true), ("off", false)])
    }

    /// One of several words.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none of them.
    pub fn choice<T: Clone>(&mut self, name: &'static str, words: &[(&str, T)]) -> Result<Option<T>, Error> {
        let right: Vec<_> = words.iter().map(|it| format!("`{}`", it.0)).collect();
        let find = |text: &str| words.iter().find(|it| it.0 == text).map(|it| it.1.clone());
        self.read(name, &right.join(" or "), find)
    }

    /// A number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none, or too large.
    pub fn number<T: FromStr>(&mut self, name: &'static str) -> Result<Option<T>, Error> {
        self.read(name, "a number", |it| it.parse().ok())
    }

    /// Who we are: the user of the URL, and its password or what stands in the file `password_file`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are two passwords, or the file cannot be read.
    pub fn login(&mut self, address: &Address<'_>) -> Result<(Option<String>, Option<Secret>), Error> {
        let password = match (self.text("password_file")?, address.password.clone()) {
            (Some(_), Some(_)) => {
                return Err(self.form.wrong("it has a password and a `password_file`; one is enough"));
            }
            (Some(file), None) => Some(Secret::from_file(&file).map_err(|it| self.form.wrong(it))?),
            (None, password) => password,
        };
        Ok((address.user.clone(), password))
    }

    /// TLS, if the URL says so: by its scheme, or by `tls=on`. Then the files `ca`, `cert` and `key` may be named.
    ///
    /// # Errors
    /// [`Error::Invalid`] if what is said does not fit together.
    pub fn tls(&mut self, scheme_says: bool) -> Result<Option<Tls>, Error> {
        let on = match self.flag("tls")? {
            Some(false) if scheme_says => {
                return Err(self.form.wrong("its scheme means TLS, and `tls=off` says the opposite"));
            }
            said => said.unwrap_or(scheme_says),
        };
        let (ca, cert, key) = (self.text("ca")?, self.text("cert")?, self.text("key")?);
        if !on && (ca.is_some() || cert.is_some() || key.is_some()) {
            return Err(self.form.wrong("`ca`, `cert` and `key` are for TLS; add `tls=on`"));
        }
        let mut tls = Tls::new();
        if let Some(ca) = ca {
            tls = tls.ca(ca);
        }
        match (cert, key) {
            (Some(cert), Some(key)) => tls = tls.identity(cert, key),
            (None, None) => {}
            _ => return Err(self.form.wrong("`cert` and `key` come together or not at all")),
        }
        Ok(on.then_some(tls))
    }

    /// A setting that has another name now.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the new one, if it was given.
    pub fn renamed(&mut self, old: &'static str, new: &'static str) -> Result<(), Error> {
        self.refused(old, &format!("it is called `{new}`"))
    }

    /// A setting that others know and this store does not, and why.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was given.
    pub fn refused(&mut self, name: &'static str, why: &str) -> Result<(), Error> {
        if self.given.iter().any(|it| it.0 == name) {
            return Err(self.form.wrong(format!("there is no setting `{name}`: {why}")));
        }
        Ok(())
    }

    /// Those of these settings that were given, names and values as they were written, for a driver that reads them.
    pub fn passed(&mut self, names: &[&'static str]) -> Vec<(&'static str, &'u str)> {
        names.iter().filter_map(|name| self.take(name).map(|value| (*name, value))).collect()
    }

    /// Refuse what nobody asked for: with the setting that was meant, and with all that there are.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a setting is left.
    pub fn finish(self) -> Result<(), Error> {
        let Some((name, _)) = self.given.first() else { return Ok(()) };
        let hint = nearest(name, &self.known).filter(|_| !self.is_secret);
        let hint = hint.map_or_else(String::new, |it| format!("did you mean `{it}`? "));
        let what = format!("{} is unknown; {hint}known are {}", self.shown(name), self.known.join(", "));
        Err(self.form.wrong(what))
    }
}

/// A duration greater than 0, such as `500ms`, `2s` or `1m 30s`.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper_core::kit::settings::span_of;
///
/// assert_eq!(span_of("1m 30s"), Some(Duration::from_secs(90)));
/// assert_eq!(span_of("0s"), None);
/// ```
pub fn span_of(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok().filter(|it| !it.is_zero())
}

/// The known word that somebody may have meant, if one is near.
///
/// ```
/// use lockkeeper_core::kit::settings::nearest;
///
/// assert_eq!(nearest("timeuot", &["prefix", "timeout"]), Some("timeout"));
/// assert_eq!(nearest("colour", &["prefix", "timeout"]), None);
/// ```
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    nearest::nearest(word, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form::new("shop", "shop://host");

    fn said<T: fmt::Debug>(query: &str, ask: impl FnOnce(&mut Settings<'_>) -> Result<T, Error>) -> String {
        let asked = FORM.settings(query).and_then(|mut it| ask(&mut it));
        asked.unwrap_err().to_string()
    }

    #[test]
    fn what_is_left_over_is_answered_with_what_was_meant() {
        for (query, right) in [
            ("timout=1s", "`timout` is unknown; did you mean `timeout`? known are timeout, session"),
            ("timeout=1s&sesion=2s", "did you mean `session`?"),
            ("colour=red", "`colour` is unknown; known are timeout, session"),
            ("=", "`` is unknown; known are"),
        ] {
            let mut settings = FORM.settings(query).unwrap();
            settings.span("timeout").unwrap();
            settings.span("session").unwrap();
            let said = settings.finish().unwrap_err().to_string();
            assert!(said.contains(right) && said.contains("shop://host"), "{query}: {said}");
        }
    }

    #[test]
    fn a_value_that_makes_no_sense_is_refused_with_one_that_does() {
        for bad in ["timeout=soon", "timeout", "timeout=0s", "timeout=%zz"] {
            assert!(said(bad, |it| it.span("timeout")).contains("`timeout`"), "{bad}");
        }
        assert!(said("create=maybe", |it| it.flag("create")).contains("`yes` or `no`"));
        assert!(said("rows=-1", |it| it.number::<u8>("rows")).contains("a number"));
        assert!(said("a=1&b=2&a=3", |it| it.text("a")).contains("`a` is given more than once"));
        assert!(
            said("busy_wait=1s", |it| it.renamed("busy_wait", "timeout")).contains("it is called `timeout`")
        );
        assert_eq!(FORM.settings("name=a%20b").unwrap().text("name").unwrap().as_deref(), Some("a b"));
    }

    #[test]
    fn tls_is_said_by_the_scheme_or_by_a_setting() {
        let tls = |scheme_says, query: &str| FORM.settings(query).unwrap().tls(scheme_says);
        assert_eq!(tls(false, "").unwrap(), None);
        assert_eq!(tls(false, "tls=off").unwrap(), None);
        assert_eq!(tls(true, "").unwrap(), Some(Tls::new()));
        let full = tls(false, "tls=on&ca=/a%20b.pem&cert=c&key=k").unwrap().unwrap();
        assert_eq!(full, Tls::new().ca("/a b.pem").identity("c", "k"));
        for (scheme_says, query) in
            [(true, "tls=off"), (false, "ca=x"), (true, "cert=x"), (true, "key=x"), (false, "tls=prefer")]
        {
            assert!(tls(scheme_says, query).is_err(), "{query}");
        }
    }

    #[test]
    fn what_may_be_a_part_of_a_password_is_not_repeated() {
        // The password is `pa?hunter=2`, and the question mark was not escaped.
        for (query, name) in
            [("hunter=2@host", "x"), ("timeout=hunter@host", "timeout"), ("hunter&hunter@h", "x")]
        {
            let said = FORM.settings(query).and_then(|mut it| {
                it.span(name)?;
                it.finish()
            });
            let said = said.unwrap_err().to_string();
            assert!(!said.contains("hunter") && said.contains("%3F"), "{said}");
        }
        let settings = FORM.settings("sentinel_password=hunter2").unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
    }

    #[test]
    fn a_password_comes_from_the_url_or_from_a_file() {
        let address = FORM.address("shop://me:hush@h").unwrap();
        let (user, password) = FORM.settings("").unwrap().login(&address).unwrap();
        assert_eq!((user.as_deref(), password.unwrap().reveal()), (Some("me"), "hush"));
        let twice = FORM.settings("password_file=/dev/null").unwrap().login(&address).unwrap_err();
        assert!(twice.to_string().contains("one is enough") && !twice.to_string().contains("hush"));
        let lacking = FORM.settings("password_file=/nonexistent").unwrap();
        assert!({ lacking }.login(&FORM.address("shop://me@h").unwrap()).is_err());
    }
}
