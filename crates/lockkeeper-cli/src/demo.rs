//! `lockkeeper demo`: the shows of `lockkeeper-demo` if they are built in, and otherwise how to get them.

#[cfg(feature = "demo")]
pub(crate) use shown::{demo, helper};
#[cfg(feature = "demo")]
pub(crate) type Demo = lockkeeper_demo::Demo;

#[cfg(not(feature = "demo"))]
pub(crate) use absent::{Demo, demo, helper};

#[cfg(feature = "demo")]
mod shown {
    use std::ffi::OsString;

    use lockkeeper_demo::{COLUMNS, Console, Demo};

    use crate::exit::{Failure, Result};
    use crate::{output, table, text};

    /// If the arguments call for one of the demo's helpers: be it.
    pub(crate) fn helper(args: impl Iterator<Item = OsString>) -> Option<u8> {
        lockkeeper_demo::helper(args, &Terminal)
    }

    pub(crate) async fn demo(demo: &Demo, url: Option<&str>) -> Result<u8> {
        Ok(lockkeeper_demo::demo(demo, url, &Terminal).await?)
    }

    /// Says and hides what the rest of the command does.
    struct Terminal;

    impl Console for Terminal {
        fn say(&self, words: &str) {
            output::say(words);
        }

        fn data(&self, text: &str) -> std::result::Result<(), lockkeeper_demo::Failure> {
            output::data(text).map_err(|it| lockkeeper_demo::Failure::new(it.code, it.text))
        }

        fn table(&self, heading: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
            table::plain(heading, rows)
        }

        fn plain(&self, words: &str) -> String {
            text::plain(words)
        }

        fn url(&self, url: &str) -> String {
            text::plain(&text::url_without_secrets(url))
        }
    }

    impl From<lockkeeper_demo::Failure> for Failure {
        fn from(failure: lockkeeper_demo::Failure) -> Self {
            let mut told = Failure::new(failure.code, failure.text);
            told.hint = failure.hint;
            told
        }
    }
}

#[cfg(not(feature = "demo"))]
mod absent {
    use std::ffi::OsString;

    use crate::exit::Result;
    use crate::features;

    /// Whatever it was to be.
    #[derive(Debug, clap::Args)]
    #[command(disable_help_flag = true)]
    pub(crate) struct Demo {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _words: Vec<OsString>,
    }

    pub(crate) fn helper(_: impl Iterator<Item = OsString>) -> Option<u8> {
        None
    }

    pub(crate) async fn demo(_: &Demo, _url: Option<&str>) -> Result<u8> {
        Err(features::lacking("the demo", &["demo"]))
    }
}
