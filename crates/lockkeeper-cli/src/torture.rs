//! `lockkeeper torture`: let processes fight for locks of a deployment, if that is built in, and otherwise how to get it.

#[cfg(feature = "torture")]
pub(crate) use shown::{Torture, helper, torture};

#[cfg(not(feature = "torture"))]
pub(crate) use absent::{Torture, helper, torture};

#[cfg(feature = "torture")]
mod shown {
    use std::ffi::OsString;
    use std::fmt::Write as _;
    use std::time::Duration;

    use lockkeeper::spi::{Lease, Order, Rooms};
    use lockkeeper_torture::{Verdict, Wish};
    use tokio::signal::unix::{SignalKind, signal};

    use crate::args;
    use crate::exit::{self, Failure, Result};
    use crate::output;
    use crate::store::Target;

    /// How many broken promises of a kind are told.
    const TOLD_MAX: usize = 5;
    const TURN_MAX: Duration = Duration::from_secs(3600);
    /// A process stands still for twice as long, and what is left is waited for.
    const TTL_MAX: Duration = Duration::from_secs(60);

    #[derive(Debug, clap::Args)]
    pub(crate) struct Torture {
        /// How long you have to break something yourself; `0s` asks nothing of you
        #[arg(long, value_name = "DUR", value_parser = bounded, default_value = "30s")]
        your_turn: Duration,

        /// How many processes fight
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=16))]
        processes: u16,

        /// How many tasks fight in each process
        #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..=64))]
        tasks: u16,

        /// The ttl of the locks, at most a minute
        #[arg(long, value_name = "DUR", value_parser = brief, default_value = "5s")]
        ttl: Duration,

        /// The seed of an earlier run, to see the same again
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
    }

    /// Nobody tortures a deployment without end by mistake.
    fn bounded(text: &str) -> std::result::Result<Duration, String> {
        at_most(args::wait_span(text)?, TURN_MAX)
    }

    fn brief(text: &str) -> std::result::Result<Duration, String> {
        at_most(args::some_span(text)?, TTL_MAX)
    }

    fn at_most(span: Duration, most: Duration) -> std::result::Result<Duration, String> {
        if span <= most { Ok(span) } else { Err(format!("it is at most {most:?}")) }
    }

    /// If the arguments call for a worker: be it.
    pub(crate) fn helper(args: impl Iterator<Item = OsString>) -> Option<u8> {
        lockkeeper_torture::helper(args, None)
    }

    pub(crate) async fn torture(target: &Target, args: &Torture) -> Result<u8> {
        let store = target.open().await?;
        let locker = store.locker.build();
        let profile = locker.profile();
        if args.ttl < profile.ttl_min || profile.ttl_max < args.ttl {
            let (least, most) = (profile.ttl_min, profile.ttl_max);
            let text = format!("this store takes a ttl from {least:?} to {most:?}, not {:?}", args.ttl);
            return Err(Failure::new(exit::USAGE, text));
        }
        drop(locker);
        // Before anything is started: whoever ends us by hand shall find no folder and no process of ours.
        let refused = |it| Failure::system("signals cannot be heard", &it);
        let mut interrupted = signal(SignalKind::interrupt()).map_err(refused)?;
        let mut ended = signal(SignalKind::terminate()).map_err(refused)?;
        let program =
            std::env::current_exe().map_err(|it| Failure::system("this program has no path", &it))?;
        let seed = args.seed.unwrap_or_else(any_seed);
        let mut wish = Wish::new(program, target.url(), &target.shown(), seed);
        (wish.processes, wish.tasks) = (args.processes.into(), args.tasks.into());
        (wish.ttl, wish.span) = (args.ttl, args.your_turn);
        (wish.ttl_max, wish.by_session) = (profile.ttl_max, profile.lease == Lease::Session);
        wish.in_order = profile.order == Order::Fifo;
        wish.has_rooms = profile.rooms != Rooms::MutexOnly;
        let verdict = tokio::select! {
            // First: our processes may have heard the same signal, and what they leave undone is no finding.
            biased;
            _ = interrupted.recv() => return Ok(given_up(&wish, SignalKind::interrupt())),
            _ = ended.recv() => return Ok(given_up(&wish, SignalKind::terminate())),
            verdict = lockkeeper_torture::torture(&wish, store.inspect, &output::say) => verdict,
        };
        let verdict =
            verdict.map_err(|it| target.failure(Failure::new(exit::UNREACHABLE, it.to_string())))?;
        output::data(&report(&verdict))?;
        Ok(if verdict.is_kept() { 0 } else { exit::NO })
    }

    /// The workers are killed by then, and cannot give back what they held.
    fn given_up(wish: &Wish, signal: SignalKind) -> u8 {
        let ttl = output::span(wish.longest_ttl());
        output::say(&format!(
            "ended by hand: what was held or waited for goes with its ttl, in {ttl} at most"
        ));
        exit::of_signal(signal.as_raw_value())
    }

    fn any_seed() -> u64 {
        let time = lockkeeper::spi::Clock::boot().now().as_nanos();
        time.rotate_left(20) ^ u64::from(std::process::id())
    }

    fn report(verdict: &Verdict) -> String {
        let mut text = verdict.table();
        for remark in verdict.remarks() {
            let _ = writeln!(text, "{remark}");
        }
        for it in &verdict.episodes {
            if let Some(why) = it.unpromised {
                let _ = writeln!(text, "{}: a G breaks no promise there: {why}", it.fault);
            }
        }
        if !verdict.is_kept() {
            text += &verdict.complaints(TOLD_MAX);
            let _ = writeln!(
                text,
                "a promise was broken; --seed {} leads back to the same struggle",
                verdict.seed
            );
        }
        format!("{text}{verdict}\n")
    }
}

#[cfg(not(feature = "torture"))]
mod absent {
    use std::ffi::OsString;

    use crate::exit::Result;
    use crate::features;
    use crate::store::Target;

    /// Whatever it was to be.
    #[derive(Debug, clap::Args)]
    #[command(disable_help_flag = true)]
    pub(crate) struct Torture {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _words: Vec<OsString>,
    }

    pub(crate) fn helper(_: impl Iterator<Item = OsString>) -> Option<u8> {
        None
    }

    pub(crate) async fn torture(_: &Target, _: &Torture) -> Result<u8> {
        Err(features::lacking("the torture", &["torture"]))
    }
}
