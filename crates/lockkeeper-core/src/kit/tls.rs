//! TLS: whom we trust and who we are, the same for every store. For authors of backends.
//!
//! There is no half measure: an encrypted connection is one to a server whose certificate was checked.

use crate::error::Error;

/// What stands in a file: certificates, or a key.
pub type Pem = Vec<u8>;

/// Files for TLS.
///
/// Without [`ca`](Tls::ca) the system's own list of authorities counts, where the store's client can read it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::kit::tls::{Pem, Tls};
///
/// let tls = Tls::new().ca("/etc/ssl/shop.pem").identity("/etc/ssl/me.pem", "/etc/ssl/me.key");
/// assert_eq!(tls.ca_file(), Some("/etc/ssl/shop.pem"));
/// assert_eq!(tls.identity_files(), Some(("/etc/ssl/me.pem", "/etc/ssl/me.key")));
/// assert!(tls.read_ca().is_err(), "there is no such file");
/// let nobody: Option<(Pem, Pem)> = Tls::new().read_identity()?;
/// assert_eq!(nobody, None);
/// assert!(Tls::lacking("redis", "lockkeeper-redis").to_string().contains("feature `tls`"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    ca: Option<String>,
    identity: Option<(String, String)>,
}

impl Tls {
    /// Encrypt, trust the system's authorities, and show no certificate.
    pub fn new() -> Self {
        Tls::default()
    }

    /// The file of the authority that signed the servers' certificates, PEM.
    #[must_use]
    pub fn ca(mut self, file: impl Into<String>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// The files of our own certificate and of its key, PEM, for servers that ask who we are.
    #[must_use]
    pub fn identity(mut self, cert: impl Into<String>, key: impl Into<String>) -> Self {
        self.identity = Some((cert.into(), key.into()));
        self
    }

    /// The file of the authority.
    pub fn ca_file(&self) -> Option<&str> {
        self.ca.as_deref()
    }

    /// The files of our certificate and of its key.
    pub fn identity_files(&self) -> Option<(&str, &str)> {
        self.identity.as_ref().map(|(cert, key)| (cert.as_str(), key.as_str()))
    }

    /// What stands in the file of the authority.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it cannot be read.
    pub fn read_ca(&self) -> Result<Option<Pem>, Error> {
        self.ca.as_deref().map(read).transpose()
    }

    /// What stands in the files of our certificate and of its key.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one cannot be read.
    pub fn read_identity(&self) -> Result<Option<(Pem, Pem)>, Error> {
        self.identity_files().map(|(cert, key)| Ok((read(cert)?, read(key)?))).transpose()
    }

    /// That TLS was asked for and not compiled in.
    pub fn lacking(backend: &'static str, crate_name: &str) -> Error {
        let what =
            format!("this program was built without TLS; add the feature `tls` of the crate `{crate_name}`");
        Error::unsupported(backend, what)
    }

    /// That a file cannot be used, and why.
    pub fn unusable(file: &str, why: impl std::fmt::Display) -> Error {
        Error::invalid(format!("the TLS file {file:?} cannot be used: {why}"))
    }
}

fn read(file: &str) -> Result<Pem, Error> {
    std::fs::read(file).map_err(|it| Tls::unusable(file, it))
}
