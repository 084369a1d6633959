//! How bytes reach PostgreSQL: plain, or encrypted by rustls to a server whose certificate was checked.

#[cfg(not(feature = "tls"))]
pub(crate) use plain::Wire;
#[cfg(feature = "tls")]
pub(crate) use secure::Wire;

#[cfg(not(feature = "tls"))]
mod plain {
    use lockkeeper_core::Error;
    use lockkeeper_core::kit::tls::Tls;
    use tokio_postgres::NoTls;

    /// The only way there is.
    #[derive(Clone)]
    pub(crate) struct Wire;

    impl Wire {
        /// The options have refused TLS.
        #[expect(clippy::unnecessary_wraps, reason = "the twin with TLS fails")]
        pub(crate) fn new(_: Option<&Tls>) -> Result<Self, Error> {
            Ok(Wire)
        }

        #[expect(clippy::unused_self, reason = "with the feature, the way is in there")]
        pub(crate) fn tls(&self) -> NoTls {
            NoTls
        }
    }
}

#[cfg(feature = "tls")]
mod secure {
    use std::future::Future;
    use std::io;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use lockkeeper_core::Error;
    use lockkeeper_core::kit::tls::Tls;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
    use tokio_rustls::TlsConnector;

    use crate::tls::authorities;

    /// How to encrypt, if at all. The driver asks only if its configuration demands TLS.
    #[derive(Clone)]
    pub(crate) struct Wire(Option<Arc<ClientConfig>>);

    impl Wire {
        pub(crate) fn new(tls: Option<&Tls>) -> Result<Self, Error> {
            tls.map(|it| configure(it).map(Arc::new)).transpose().map(Wire)
        }

        pub(crate) fn tls(&self) -> Self {
            self.clone()
        }
    }

    fn configure(tls: &Tls) -> Result<ClientConfig, Error> {
        let ca = tls.ca_file().unwrap_or("of the system");
        let mut roots = RootCertStore::empty();
        let (added, ignored) = roots.add_parsable_certificates(authorities(tls)?);
        if added == 0 {
            return Err(Tls::unusable(ca, format!("none of its {ignored} certificates is usable")));
        }
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let (Some((cert_file, key_file)), Some((cert, key))) = (tls.identity_files(), tls.read_identity()?)
        else {
            return Ok(builder.with_no_client_auth());
        };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&cert).collect();
        let chain = chain.map_err(|it| Tls::unusable(cert_file, it))?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|it| Tls::unusable(key_file, it))?;
        builder.with_client_auth_cert(chain, key).map_err(|it| Tls::unusable(key_file, it))
    }

    impl<S> MakeTlsConnect<S> for Wire
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        type Stream = Encrypted<S>;
        type TlsConnect = Handshake;
        type Error = io::Error;

        fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
            let Some(config) = &self.0 else {
                return Ok(Handshake(None));
            };
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            Ok(Handshake(Some((TlsConnector::from(config.clone()), name))))
        }
    }

    pub(crate) struct Handshake(Option<(TlsConnector, ServerName<'static>)>);

    impl<S> TlsConnect<S> for Handshake
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        type Stream = Encrypted<S>;
        type Error = io::Error;
        type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

        fn connect(self, stream: S) -> Self::Future {
            Box::pin(async move {
                let (connector, name) = self.0.ok_or_else(|| io::Error::other("TLS was not chosen"))?;
                connector.connect(name, stream).await.map(Encrypted)
            })
        }
    }

    /// An encrypted connection.
    pub(crate) struct Encrypted<S>(tokio_rustls::client::TlsStream<S>);

    impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
        fn channel_binding(&self) -> ChannelBinding {
            ChannelBinding::none()
        }
    }

    impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, buf)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }
}
