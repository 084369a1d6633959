//! Whether messages arrive. Behind a pooler they may not, and a session that others use as well must not be told to
//! listen; those who wait look instead.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::ClaimId;
use tokio_postgres::types::Type;

use super::session::{Ears, Session};
use super::way::Shared;

/// How long a message to ourselves may take.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
const HELLO: &str = "hello";

/// Listen on this session, which is ours alone. `false` if it is broken.
pub(super) async fn begin(shared: &Shared, session: &Session, channel: &str) -> bool {
    // The channel's name is ours: letters and digits.
    let listen = format!("LISTEN {channel}");
    shared.in_time(session.client.batch_execute(&listen)).await.is_ok()
}

/// Whether messages arrive, tried on connections and a channel of their own.
pub(super) async fn hello(shared: &Shared) -> bool {
    let ears = Ears::new(Arc::default());
    let (Ok(session), Ok(other), Ok(id)) =
        (shared.dialer.dial(Some(&ears)).await, shared.dialer.dial(None).await, ClaimId::random())
    else {
        return false;
    };
    let channel = format!("lockkeeper_{}", id.to_hex());
    if !session.is_ours() || !begin(shared, &session, &channel).await {
        return false;
    }
    let params = [(&channel as _, Type::TEXT), (&HELLO as _, Type::TEXT)];
    if shared.in_time(other.client.query_typed("SELECT pg_notify($1, $2)", &params)).await.is_err() {
        return false;
    }
    tokio::select! {
        () = ears.heard.notified() => true,
        () = shared.clock.sleep(HELLO_WITHIN) => false,
    }
}
