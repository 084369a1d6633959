//! Certificates for one throw-away server: an authority of its own, a server's and a client's certificate.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::give;
use crate::process::KitError;

/// Paths of PEM files. The server's certificate is valid for `localhost` and `127.0.0.1`.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The authority that signed both certificates; clients trust it.
    pub ca: PathBuf,
    /// The server's certificate.
    pub server_cert: PathBuf,
    /// The server's private key.
    pub server_key: PathBuf,
    /// A client's certificate, for servers that demand one.
    pub client_cert: PathBuf,
    /// The client's private key.
    pub client_key: PathBuf,
}

impl Tls {
    /// Make new keys and certificates in `folder`.
    ///
    /// # Errors
    /// If they cannot be made or written.
    pub fn generate(folder: &Path) -> Result<Self, KitError> {
        let tls = Tls {
            ca: folder.join("ca.pem"),
            server_cert: folder.join("server.pem"),
            server_key: folder.join("server.key"),
            client_cert: folder.join("client.pem"),
            client_key: folder.join("client.key"),
        };
        tls.write().map_err(|error| KitError::new(format!("could not make certificates: {error}")))?;
        Ok(tls)
    }

    /// The same for a server that runs as another user and wants its key to be its own.
    pub(super) fn generate_for(folder: &Path, user: &str, package: &str) -> Result<Self, KitError> {
        let tls = Tls::generate(folder)?;
        fs::set_permissions(&tls.server_key, fs::Permissions::from_mode(0o600))?;
        for file in [&tls.ca, &tls.server_cert, &tls.server_key] {
            give(file, user, package)?;
        }
        Ok(tls)
    }

    fn write(&self) -> Result<(), Box<dyn std::error::Error>> {
        let key = KeyPair::generate()?;
        let mut params = named("Lockkeeper test authority", &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(&self.ca, params.self_signed(&key)?.pem())?;
        let authority = Issuer::new(params, key);

        let key = KeyPair::generate()?;
        let params = named("Lockkeeper test server", &["localhost", "127.0.0.1"])?;
        fs::write(&self.server_cert, params.signed_by(&key, &authority)?.pem())?;
        fs::write(&self.server_key, key.serialize_pem())?;

        let key = KeyPair::generate()?;
        let params = named("Lockkeeper test client", &[])?;
        fs::write(&self.client_cert, params.signed_by(&key, &authority)?.pem())?;
        fs::write(&self.client_key, key.serialize_pem())?;
        Ok(())
    }
}

fn named(name: &str, hosts: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
