//! `lockkeeper serve`: locks over HTTP and the console, if they are built in, and otherwise how to get them.

#[cfg(feature = "serve")]
pub(crate) use there::{Serve, serve};

#[cfg(not(feature = "serve"))]
pub(crate) use absent::{Serve, serve};

#[cfg(feature = "serve")]
mod there {
    use std::path::{Path, PathBuf};

    use clap::{Args, ValueEnum};
    use lockkeeper::Meters;
    use lockkeeper_serve::{HotNames, Listen, random_token};
    use tokio::signal::unix::{SignalKind, signal};

    use crate::exit::{self, Failure, Result};
    use crate::output;
    use crate::store::Target;

    /// A token that is shorter can be guessed.
    const TOKEN_BYTES: usize = 16;

    #[derive(Debug, Args)]
    pub(crate) struct Serve {
        /// Where to listen: an address of this machine, or `unix:PATH`
        #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:7765")]
        listen: String,

        /// A file with the token that clients show [default: a random one, told once on standard error]
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,

        /// What clients may do beside looking; may be given several times [default: nothing]
        #[arg(long, value_name = "WHAT")]
        allow: Vec<Allow>,

        /// Another name by which clients call this server, as `locks.internal:7765`; may be given several times
        #[arg(long, value_name = "HOST")]
        host: Vec<String>,

        /// Listen on an address that others can reach: a proxy before it has the TLS. Needs --token-file
        #[arg(long, requires = "token_file")]
        behind_proxy: bool,

        /// Show on the console what two-phase commit left in doubt: the log, `sqlite:PATH`, `postgres://…` or `mysql://…`
        #[cfg(feature = "twophase")]
        #[arg(long = "2pc-log", value_name = "URL", env = "LOCKKEEPER_2PC_LOG", hide_env_values = true)]
        two_phase_log: Option<String>,

        /// A participant of it, as the programs name it; may be given several times. In the variable blanks stand between them
        #[cfg(feature = "twophase")]
        #[arg(
            long = "2pc-participant",
            value_name = "NAME=URL",
            env = "LOCKKEEPER_2PC_PARTICIPANTS",
            hide_env_values = true,
            value_delimiter = ' '
        )]
        two_phase_participants: Vec<String>,
    }

    impl Serve {
        /// With the page of what is in doubt, if a log is named.
        #[cfg(feature = "twophase")]
        fn doubts(
            &self,
            serve: lockkeeper_serve::Serve,
            locker: &lockkeeper::Locker,
            meters: &Meters,
            target: &Target,
        ) -> Result<lockkeeper_serve::Serve> {
            use crate::two_phase::{Place, in_doubt, placed};
            let place = Place {
                log: self.two_phase_log.clone().filter(|it| !it.is_empty()),
                participants: self.two_phase_participants.clone(),
            };
            let place = placed(target, &place)?;
            if place.log.is_none() {
                return Ok(serve);
            }
            let (locker, meters, place) = (locker.clone(), meters.clone(), std::sync::Arc::new(place));
            Ok(serve.two_phase(move || {
                let (locker, meters, place) = (locker.clone(), meters.clone(), place.clone());
                async move { in_doubt(&locker, &meters, &place).await }
            }))
        }

        #[cfg(not(feature = "twophase"))]
        #[expect(clippy::unused_self, reason = "no log can be named")]
        #[expect(clippy::unnecessary_wraps, reason = "the twin reads settings")]
        fn doubts(
            &self,
            serve: lockkeeper_serve::Serve,
            _: &lockkeeper::Locker,
            _: &Meters,
            _: &Target,
        ) -> Result<lockkeeper_serve::Serve> {
            Ok(serve)
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    enum Allow {
        /// Take and give back locks, and lead
        Locks,
        /// Break a lock on the console: the holder that was shown
        Break,
    }

    pub(crate) fn serve(target: &Target, args: &Serve) -> Result<u8> {
        let threads = lockkeeper_serve::worker_threads();
        let built = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
        let runtime = built.map_err(|it| Failure::system("the runtime cannot be started", &it))?;
        runtime.block_on(run(target, args))
    }

    async fn run(target: &Target, args: &Serve) -> Result<u8> {
        let listen = Listen::parse(&args.listen)?;
        if !listen.is_local() && !args.behind_proxy {
            return Err(Failure::new(
                exit::USAGE,
                "others can reach that address, and this server has no TLS",
            )
            .or_hint(|| {
                "listen on 127.0.0.1 or unix:PATH; or put a proxy with TLS before it and say --behind-proxy \
                     and --token-file"
                    .into()
            }));
        }
        let given = args.token_file.as_deref().map(token_in).transpose()?;
        let token = match &given {
            Some(token) => token.clone(),
            None => random_token()?,
        };
        raise_file_limit();
        let (store, meters, hot) = (target.open().await?, Meters::new(), HotNames::default());
        let locker = store.locker.observer(meters.clone()).observer(hot.clone()).build();
        let serve = lockkeeper_serve::Serve::with(locker.clone(), store.inspect.clone(), &token)?
            .store(target.shown())
            .hot_names(hot)
            .hosts(args.host.iter().cloned())
            .metrics({
                let meters = meters.clone();
                move || meters.openmetrics()
            });
        let mut serve = args.doubts(serve, &locker, &meters, target)?;
        if args.allow.contains(&Allow::Locks) {
            serve = serve.allow_locks();
        }
        if args.allow.contains(&Allow::Break) {
            serve = serve.allow_break().on_break(output::say);
        }
        let listener = listen.bind().await?;
        let shown = listener.shown();
        output::say(&format!("listening on {shown}"));
        if given.is_none() {
            output::say_raw(&format!("lockkeeper: the token is {token}\n"));
        } else if token.len() < TOKEN_BYTES {
            output::say(&format!(
                "the token has {} bytes and can be guessed; draw at least {TOKEN_BYTES} at random",
                token.len()
            ));
        }
        if shown.starts_with("http") {
            output::say(&format!("the console is {shown}/#token=TOKEN"));
        }
        serve.run(listener, asked_to_end()?).await.map_err(|it| target.failure(it))?;
        Ok(0)
    }

    /// The token in a file, without the line's end.
    fn token_in(path: &Path) -> Result<String> {
        let unread = |it: &dyn std::fmt::Display| {
            Failure::new(exit::USAGE, format!("the token file `{}` cannot be read: {it}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|it| unread(&it))?;
        let token = text.trim();
        if token.is_empty() { Err(unread(&"it is empty")) } else { Ok(token.to_owned()) }
    }

    /// A stream needs a file; the usual soft limit is for programs with few.
    fn raise_file_limit() {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // Where it is refused, fewer clients fit.
        let _ = setrlimit(Resource::Nofile, limit);
    }

    fn asked_to_end() -> Result<impl Future<Output = ()>> {
        let heard = |kind| signal(kind).map_err(|it| Failure::system("signals cannot be heard", &it));
        let (mut term, mut int) = (heard(SignalKind::terminate())?, heard(SignalKind::interrupt())?);
        Ok(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        })
    }
}

#[cfg(not(feature = "serve"))]
mod absent {
    use std::ffi::OsString;

    use crate::exit::Result;
    use crate::features;
    use crate::store::Target;

    /// Whatever it was to be.
    #[derive(Debug, clap::Args)]
    #[command(disable_help_flag = true)]
    pub(crate) struct Serve {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _words: Vec<OsString>,
    }

    pub(crate) fn serve(_: &Target, _: &Serve) -> Result<u8> {
        Err(features::lacking("the server", &["serve"]))
    }
}
