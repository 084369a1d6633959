//! Channels to endpoints: how they are opened and kept alive, and how many connections were made.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use lockkeeper_core::Error;
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{Service, StdError};
use tonic::transport::{Channel, Endpoint};

use crate::options::EtcdOptions;

/// The kernel sends a sign of life on an idle connection this often: more often than a careless firewall forgets it,
/// and no server minds.
const KERNEL_ALIVE_EVERY: Duration = Duration::from_secs(1);
const KERNEL_ALIVE_RETRIES: u32 = 4;
/// While something is under way the server itself is asked this often, and it ends connections that ask more often
/// than every five seconds, or while nothing is under way.
const ALIVE_EVERY: Duration = Duration::from_secs(6);
const ALIVE_MAX: Duration = Duration::from_secs(3);

/// How many connections were made, by all channels of one store.
/// Acquire and Release are more than enough: a connection is counted before it is used, and whoever is to know of it has heard
/// an answer that came over it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dials(Arc<AtomicU64>);

impl Dials {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Makes connections, and counts them.
#[derive(Clone)]
struct Dial {
    http: HttpConnector,
    dials: Dials,
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").finish_non_exhaustive()
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = StdError;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Self::Response, StdError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<std::result::Result<(), StdError>> {
        self.http.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connect, dials) = (self.http.call(uri), self.dials.clone());
        Box::pin(async move {
            let connected = connect.await?;
            // Counted before it is used: whoever hears an answer on it knows of it.
            dials.0.fetch_add(1, Ordering::AcqRel);
            Ok(connected)
        })
    }
}

fn dial(options: &EtcdOptions, dials: &Dials) -> Dial {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(options.connect_patience()));
    http.set_keepalive(Some(KERNEL_ALIVE_EVERY));
    http.set_keepalive_interval(Some(KERNEL_ALIVE_EVERY));
    http.set_keepalive_retries(Some(KERNEL_ALIVE_RETRIES));
    Dial { http, dials: dials.clone() }
}

/// A channel to an endpoint, driven by the runtime in whose context this is called. Nothing is sent yet.
pub(crate) fn channel(
    endpoint: &str,
    options: &EtcdOptions,
    dials: &Dials,
) -> lockkeeper_core::Result<Channel> {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let unusable = |it: tonic::transport::Error| Error::unavailable(format!("the etcd node {endpoint}"), it);
    let endpoint = Endpoint::from_shared(format!("{scheme}://{endpoint}"))
        .map_err(unusable)?
        .connect_timeout(options.connect_patience())
        .http2_keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_MAX)
        .keep_alive_while_idle(false);
    #[cfg(feature = "tls")]
    let endpoint = match &options.tls {
        Some(tls) => endpoint.tls_config(tls_config(tls, options.domain.as_deref())?).map_err(unusable)?,
        None => endpoint,
    };
    Ok(endpoint.connect_with_connector_lazy(dial(options, dials)))
}

#[cfg(feature = "tls")]
fn tls_config(
    tls: &lockkeeper_core::kit::tls::Tls,
    domain: Option<&str>,
) -> lockkeeper_core::Result<tonic::transport::ClientTlsConfig> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};

    let mut config = match tls.read_ca()? {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((cert, key)) = tls.read_identity()? {
        config = config.identity(Identity::from_pem(cert, key));
    }
    if let Some(domain) = domain {
        config = config.domain_name(domain);
    }
    Ok(config)
}
