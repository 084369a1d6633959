//! TLS: the authorities that are trusted, as the drivers want them, and what a failed handshake means.

#[cfg(not(feature = "tls"))]
/// What a failed handshake means.
pub(crate) fn advice(_: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    None
}

#[cfg(feature = "tls")]
mod with {
    use std::error::Error as StdError;

    use lockkeeper_core::Error;
    use lockkeeper_core::kit::tls::Tls;
    use rustls::CertificateError;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    /// The authorities that are trusted.
    pub(crate) fn authorities(tls: &Tls) -> Result<Vec<CertificateDer<'static>>, Error> {
        ready();
        let (Some(file), Some(content)) = (tls.ca_file(), tls.read_ca()?) else {
            let found = rustls_native_certs::load_native_certs().certs;
            if found.is_empty() {
                return Err(Error::invalid(
                    "this system has no list of authorities; name the server's by `ca=FILE`",
                ));
            }
            return Ok(found);
        };
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
        let found = found.map_err(|it| Tls::unusable(file, it))?;
        if found.is_empty() {
            return Err(Tls::unusable(file, "it holds no certificate in PEM"));
        }
        Ok(found)
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
pub(crate) use with::{advice, authorities};
