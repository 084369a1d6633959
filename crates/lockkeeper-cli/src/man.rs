//! The manual pages, made from the command line's own definition: `lockkeeper man FOLDER`, for those who pack it.

use std::fs;
use std::path::Path;

use crate::exit::{Failure, Result};

/// Write a page for the command and one for each of its own.
pub(crate) fn write(command: clap::Command, folder: &Path) -> Result<u8> {
    let made = fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    made.map_err(|it| {
        Failure::system(&format!("the manual pages cannot be written to `{}`", folder.display()), &it)
    })?;
    Ok(0)
}
