//! The conformance suite on one server and on three.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod common;

use std::time::Duration;

use lockkeeper_servers::quorum::Behind;

use common::Servers;

lockkeeper_testkit::suite!(one_server, Behind::<Servers>::start(1, Duration::from_secs(1)).await);
lockkeeper_testkit::suite!(three_servers, Behind::<Servers>::start(3, Duration::from_secs(2)).await);
