//! TLS: the files of the options, as the client wants them.

#[cfg(feature = "tls")]
use lockkeeper_core::backend::Fault;
use lockkeeper_core::backend::Result;
use zookeeper_client::{Client, Connector};

#[cfg(feature = "tls")]
use crate::fault::NAME;
use crate::options::ZooKeeperOptions;

/// A connector, with TLS if the options say so. The files are read anew for every session, so that renewed
/// certificates count.
#[cfg(feature = "tls")]
pub(crate) fn connector(options: &ZooKeeperOptions) -> Result<Connector> {
    let Some(tls) = &options.tls else { return Ok(Client::connector()) };
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // The client asks for the process's default, which is not clear where two are built in. If another thread was
        // quicker there is a default now, which is all we need.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let wrong = |what: String| Fault::permanent(NAME, "preparing TLS", what);
    let text =
        |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|it| wrong(format!("a file is no PEM: {it}")));
    let unreadable = |it: lockkeeper_core::Error| wrong(it.to_string());
    for server in &options.servers {
        let name = server.rsplit_once(':').map_or(server.as_str(), |it| it.0);
        // The client would panic.
        rustls::pki_types::ServerName::try_from(name.trim_matches(['[', ']']))
            .map_err(|it| wrong(format!("{name:?} cannot be the name in a certificate: {it}")))?;
    }
    let mut chosen = zookeeper_client::TlsOptions::new();
    if let Some(ca) = tls.read_ca().map_err(unreadable)? {
        let file = tls.ca_file().unwrap_or_default();
        chosen = chosen.with_pem_ca(&text(ca)?).map_err(|it| wrong(format!("{file:?}: {it}")))?;
    }
    if let Some((cert, key)) = tls.read_identity().map_err(unreadable)? {
        let identity = chosen.with_pem_identity(&text(cert)?, &text(key)?);
        chosen =
            identity.map_err(|it| wrong(format!("{:?}: {it}", tls.identity_files().unwrap_or_default())))?;
    }
    Ok(Client::connector().with_tls(chosen))
}

/// A connector. [`ZooKeeperOptions::parse`] has refused TLS.
#[cfg(not(feature = "tls"))]
#[expect(clippy::unnecessary_wraps, reason = "the twin with TLS fails")]
pub(crate) fn connector(_options: &ZooKeeperOptions) -> Result<Connector> {
    Ok(Client::connector())
}

/// Connect to the servers of the options.
pub(crate) async fn connect(
    connector: Connector,
    options: &ZooKeeperOptions,
) -> std::result::Result<Client, zookeeper_client::Error> {
    let servers = options.servers.join(",");
    #[cfg(feature = "tls")]
    if options.tls.is_some() {
        return connector.secure_connect(&servers).await;
    }
    connector.connect(&servers).await
}
