//! `lockkeeper config`: what the settings are, where they come from, and what is wrong with them.

use std::path::Path;

use lockkeeper::Config;

use crate::args::ConfigCommand;
use crate::exit::{Failure, Result};
use crate::output;
use crate::store::Target;
use crate::{help, text};

/// The settings of this call.
pub(crate) fn load(named: Option<&Path>) -> Result<Config> {
    // An empty variable is how a shell script unsets one.
    let loaded = match named.filter(|it| !it.as_os_str().is_empty()) {
        Some(file) => Config::load_from(Some(file)),
        None => Config::load(),
    };
    loaded.map_err(|it| Failure::from(it).or_hint(|| format!("see {}guides/configuration.md", help::PAGES)))
}

/// Say so if the settings come from a file that nobody named: in another folder the same command does something else.
pub(crate) fn tell_if_found(named: Option<&Path>, config: &Config) {
    let found = config.file().filter(|_| named.is_none_or(|it| it.as_os_str().is_empty()));
    if let Some(file) = found {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        output::say(&format!("settings of {}", text::plain(&file.display().to_string())));
    }
}

pub(crate) fn config(command: ConfigCommand, config: &Config, target: Result<Target>) -> Result<u8> {
    let file = match config.file() {
        Some(file) => text::plain(&file.display().to_string()),
        None => "no file; `lockkeeper.toml` in this folder would be read".into(),
    };
    // The secrets must be there, also if only a check is wanted.
    let store = target?.shown();
    let words = match command {
        ConfigCommand::Check => format!("# {file}\nall is well; the store is {store}\n"),
        ConfigCommand::Show => {
            let usual =
                if config.names_a_store() { String::new() } else { format!("# the store: {store}\n") };
            format!("# {file}\n{usual}{}", text::message(&config.to_string()))
        }
    };
    output::data(&words)?;
    Ok(0)
}
