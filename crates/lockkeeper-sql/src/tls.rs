//! TLS: whether the connection is encrypted, whom we trust and who we are, in the words of a URL.
//!
//! There is no half measure: an encrypted connection is one to a server whose certificate was checked.

use lockkeeper_core::Error;

/// Files for TLS. Without `ca` the system's own list of authorities counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authority that signed the server's certificate, PEM.
    pub ca: Option<String>,
    /// Our own certificate, PEM, for a server that asks for one.
    pub cert: Option<String>,
    /// The key to our certificate, PEM.
    pub key: Option<String>,
}

/// What a URL says about TLS, word by word.
#[derive(Debug, Default)]
pub(crate) struct Words {
    on: bool,
    files: Tls,
}

impl Words {
    /// Take a key that is ours. `false` means that it is somebody else's.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<bool, Error> {
        match (key, value) {
            ("tls", "on") => self.on = true,
            ("tls", "off") => self.on = false,
            ("tls", _) => {
                return Err(Error::invalid(format!(
                    "`tls` cannot be {value:?}; it is `on` (encrypted, and the server's certificate is checked) or `off`"
                )));
            }
            ("ca", _) => self.files.ca = Some(decoded(value)?),
            ("cert", _) => self.files.cert = Some(decoded(value)?),
            ("key", _) => self.files.key = Some(decoded(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What was said, if it makes sense together.
    pub(crate) fn finish(self) -> Result<Option<Tls>, Error> {
        if self.files.cert.is_some() != self.files.key.is_some() {
            return Err(Error::invalid("`cert` and `key` come together or not at all"));
        }
        if !self.on && self.files != Tls::default() {
            return Err(Error::invalid("`ca`, `cert` and `key` are for TLS; add `tls=on`"));
        }
        Ok(self.on.then_some(self.files))
    }
}

/// A value without its %XX.
fn decoded(value: &str) -> Result<String, Error> {
    let wrong = || Error::invalid("a file's name in the URL has a broken %XX or is no UTF-8");
    let (mut bytes, mut rest) = (Vec::new(), value.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|it| std::str::from_utf8(it).ok());
        bytes.push(digits.and_then(|it| u8::from_str_radix(it, 16).ok()).ok_or_else(wrong)?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(not(feature = "tls"))]
mod without {
    use super::{Error, Tls};

    /// Refuse what was not compiled in.
    pub(crate) fn refuse(tls: Option<&Tls>) -> Result<(), Error> {
        match tls {
            None => Ok(()),
            Some(_) => Err(Error::invalid(
                "`tls=on` needs the feature `tls` of lockkeeper-sql, which was not compiled in",
            )),
        }
    }

    /// What a failed handshake means.
    pub(crate) fn advice(_: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
        None
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) use without::{advice, refuse};

#[cfg(feature = "tls")]
mod with {
    use std::error::Error as StdError;
    use std::fmt::Display;

    use rustls::CertificateError;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::{Error, Tls};

    /// A certificate and its key, as they stand in their files.
    pub(crate) type Identity = (Vec<u8>, Vec<u8>);

    impl Tls {
        /// The authorities that are trusted.
        pub(crate) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
            ready();
            let Some(file) = &self.ca else {
                let found = rustls_native_certs::load_native_certs().certs;
                if found.is_empty() {
                    return Err(Error::invalid(
                        "this system has no list of authorities; name the server's by `ca=FILE`",
                    ));
                }
                return Ok(found);
            };
            let content = read(file)?;
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
            let found = found.map_err(|it| unusable(file, &it))?;
            if found.is_empty() {
                return Err(unusable(file, &"it holds no certificate in PEM"));
            }
            Ok(found)
        }

        /// Who we are, if somebody asks.
        pub(crate) fn identity(&self) -> Result<Option<Identity>, Error> {
            match (&self.cert, &self.key) {
                (Some(cert), Some(key)) => Ok(Some((read(cert)?, read(key)?))),
                (None, None) => Ok(None),
                _ => Err(Error::invalid("`cert` and `key` come together or not at all")),
            }
        }
    }

    fn read(file: &str) -> Result<Vec<u8>, Error> {
        std::fs::read(file).map_err(|it| unusable(file, &it))
    }

    pub(crate) fn unusable(file: &str, why: &dyn Display) -> Error {
        Error::invalid(format!("the TLS file {file:?} cannot be used: {why}"))
    }

    /// The drivers ask rustls for the process's default provider and would panic if that is not clear.
    fn ready() {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Somebody else may be faster; then theirs counts.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
    }

    /// What a failed handshake means, found among the causes of an error.
    pub(crate) fn advice(error: &(dyn StdError + 'static)) -> Option<&'static str> {
        let mut cause = Some(error);
        while let Some(it) = cause {
            let inner = it.downcast_ref::<std::io::Error>().and_then(|it| it.get_ref());
            let inner = inner.map(|it| it as &(dyn StdError + 'static));
            if let Some(said) = inner.unwrap_or(it).downcast_ref::<rustls::Error>() {
                return Some(match said {
                    rustls::Error::InvalidCertificate(
                        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                    ) => "the server's certificate is for another host; use the name that stands in it",
                    rustls::Error::InvalidCertificate(_) => {
                        "the server's certificate is not trusted; name the authority that signed it by `ca=FILE`"
                    }
                    _ => "the server and we cannot agree on TLS",
                });
            }
            cause = it.source().or(inner.and_then(StdError::source));
        }
        None
    }
}

#[cfg(feature = "tls")]
pub(crate) use with::advice;
#[cfg(all(feature = "tls", feature = "postgres"))]
pub(crate) use with::unusable;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pairs: &[(&str, &str)]) -> Result<Option<Tls>, Error> {
        let mut words = Words::default();
        for (key, value) in pairs {
            assert!(words.set(key, value)?);
        }
        words.finish()
    }

    #[test]
    fn the_words_about_tls_are_understood() {
        assert_eq!(words(&[]).unwrap(), None);
        assert_eq!(words(&[("tls", "off")]).unwrap(), None);
        assert_eq!(words(&[("tls", "on")]).unwrap(), Some(Tls::default()));
        let own = words(&[("ca", "/a%20b/ca.pem"), ("tls", "on")]).unwrap().unwrap();
        assert_eq!(own.ca.as_deref(), Some("/a b/ca.pem"));
        assert!(!Words::default().set("create", "no").unwrap());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in [
            &[("tls", "prefer")][..],
            &[("ca", "ca.pem")],
            &[("tls", "off"), ("ca", "ca.pem")],
            &[("tls", "on"), ("cert", "c.pem")],
            &[("tls", "on"), ("ca", "%zz")],
            &[("tls", "on"), ("ca", "%f")],
        ] {
            assert!(matches!(words(wrong), Err(Error::Invalid { .. })), "{wrong:?}");
        }
    }
}
