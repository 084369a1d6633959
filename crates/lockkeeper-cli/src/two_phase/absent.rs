//! `lockkeeper 2pc` where it is not built in: how to get it.

use std::ffi::OsString;

use crate::exit::Result;
use crate::features;
use crate::store::Target;

/// Whatever it was to be.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct TwoPhaseCommand {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _words: Vec<OsString>,
}

#[expect(clippy::unused_async, reason = "the command that is built in looks at a log")]
pub(crate) async fn two_phase(_: &Target, _: &TwoPhaseCommand) -> Result<u8> {
    Err(features::lacking("two-phase commit", &["twophase"]))
}

/// There are no participants.
#[expect(clippy::unused_async, reason = "the command that is built in asks them")]
pub(crate) async fn findings(_: &Target) -> Result<Vec<(String, lockkeeper::spi::Finding)>> {
    Ok(Vec::new())
}
