//! The conformance suite on one server and on three.

use std::time::Duration;

use crate::common::{Behind, Servers};

lockkeeper_testkit::suite!(one_server, Behind::new(Servers::one().await, Duration::from_secs(1)));
lockkeeper_testkit::suite!(three_servers, Behind::new(Servers::three().await, Duration::from_secs(2)));
