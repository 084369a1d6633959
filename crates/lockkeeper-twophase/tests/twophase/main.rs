//! Two-phase commit on real servers: the protocol, every crash, take-overs, and bad input.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may panic and print"
)]

mod alone;
mod audit;
mod bad_input;
mod crash;
mod deaths;
mod doctor;
mod inside;
mod journeys;
mod logs;
mod outage;
mod protocol;
mod recovery;
mod rulings;
mod servers;
mod sessions;
mod setback;
mod site;
mod takeover;
#[cfg(feature = "tls")]
mod tls;
mod verdicts;
mod ways;
mod worker;
