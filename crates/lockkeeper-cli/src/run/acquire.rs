//! Getting the lock: wait or try, tell who is in the way, and leave the line when a signal comes.

use std::pin::pin;
use std::time::Duration;

use lockkeeper::spi::{Clock, DynInspect, Occupant};
use lockkeeper::{Error, Label, Load, Locker, Owner, Wish};

use crate::args::{Run, Wanted};
use crate::exit::{self, Failure, Result};
use crate::run::held::{self, Held};
use crate::run::signals::{Incoming, Signals};
use crate::{output, text, view};

pub(crate) enum Acquired {
    Held(Held),
    /// A signal came first.
    Interrupted(i32),
}

/// How long to wait before telling a person at the terminal what we wait for.
const SILENT_MAX: Duration = Duration::from_secs(1);

/// How long a signal may be kept waiting until the store has taken us out of its line.
const LEAVE_MAX: Duration = Duration::from_secs(2);

pub(crate) async fn acquire(
    locker: &Locker,
    inspect: &dyn DynInspect,
    wanted: &[Wanted],
    args: &Run,
    signals: &mut Signals,
) -> Result<Acquired> {
    let asked = {
        let mut asked = pin!(ask(locker, wanted, args));
        let mut notice = pin!(tell_later(inspect, wanted));
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => break Ok(answer),
                incoming = signals.next() => {
                    if let Incoming::Ask(signal) = incoming {
                        break Err(signal);
                    }
                }
                // It never ends by itself.
                () = &mut notice => {}
            }
        }
    };
    let ended = match asked {
        Ok(Ok(Some(held))) => return Ok(Acquired::Held(held)),
        Ok(Ok(None)) => Err(busy(inspect, wanted, "at once").await),
        Ok(Err(Error::TimedOut { waited, .. })) => {
            Err(busy(inspect, wanted, &format!("within {}", output::span(waited))).await)
        }
        Ok(Err(error @ Error::Unsupported { .. })) => Err(Failure::from(error).or_hint(|| {
            "leave out --shared and --permits, or name another store with --url or LOCKKEEPER_URL".into()
        })),
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => Ok(Acquired::Interrupted(signal.as_raw())),
    };
    // Whoever stands behind us in line need not wait for our ttl. If the store does not answer, they must.
    let _ = locker.shutdown(LEAVE_MAX).await;
    ended
}

/// Give a request of any kind the options of the command line, and let it try or wait.
macro_rules! answer {
    ($request:expr, $args:ident, $kind:path) => {{
        let mut request = $request.ttl($args.ttl()).owner(&Owner::new(user()));
        if let Some(note) = &$args.note {
            request = request.note(note);
        }
        if let Some(max_hold) = $args.max_hold {
            request = request.max_hold(max_hold);
        }
        // Not to wait at all is to try: an answer takes time, and a free lock shall be had.
        if $args.attempt || $args.wait == Some(Duration::ZERO) {
            request.attempt().await.map(|it| it.map($kind))
        } else {
            request.wait_at_most($args.wait.unwrap_or(Duration::MAX)).await.map(|it| Some($kind(it)))
        }
    }};
}

async fn ask(locker: &Locker, wanted: &[Wanted], args: &Run) -> lockkeeper::Result<Option<Held>> {
    match wanted {
        [Wanted { key, load: Load::MUTEX }] => {
            let request = locker.lock_key(Ok(key.clone())).cold();
            answer!(request.hold_at_least(args.at_least.unwrap_or_default()), args, Held::Alone)
        }
        [Wanted { key, load: Load::READER }] => answer!(locker.read(key).cold(), args, Held::Shared),
        [Wanted { key, load }] => {
            answer!(locker.permits(key, load.weight, load.capacity).cold(), args, Held::Shared)
        }
        several => answer!(locker.lock_all(several.iter().map(wish)), args, Held::Several),
    }
}

fn wish(Wanted { key, load }: &Wanted) -> Wish {
    match *load {
        Load::MUTEX => Wish::lock(key.as_str()),
        Load::READER => Wish::read(key.as_str()),
        load => Wish::permits(key.as_str(), load.weight, load.capacity),
    }
}

/// The person behind the command, for `ls`.
fn user() -> String {
    let named = |it| std::env::var(it).ok().filter(|it| !it.is_empty());
    // Without these two (cron, containers, systemd) the password database knows.
    let known = || nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|it| it.name);
    let by_number = || format!("uid:{}", rustix::process::getuid());
    named("USER").or_else(|| named("LOGNAME")).or_else(known).unwrap_or_else(by_number)
}

/// After a while tell a person at the terminal what we wait for.
async fn tell_later(inspect: &dyn DynInspect, wanted: &[Wanted]) {
    use std::io::IsTerminal as _;
    if std::io::stderr().is_terminal() {
        Clock::boot().sleep(SILENT_MAX).await;
        let names = held::names(wanted.iter().map(|it| &it.key));
        match in_the_way(inspect, wanted).await {
            Some(who) => output::say(&format!("waiting for {names}: {who}")),
            None => output::say(&format!("waiting for {names}")),
        }
    }
    std::future::pending::<()>().await;
}

async fn busy(inspect: &dyn DynInspect, wanted: &[Wanted], when: &str) -> Failure {
    let names = held::names(wanted.iter().map(|it| &it.key));
    let text = match wanted {
        [_] => format!("the lock {names} was not obtained {when}"),
        _ => format!("the locks {names} were not obtained {when}"),
    };
    let who = in_the_way(inspect, wanted).await;
    Failure::new(exit::BUSY, text).or_hint(|| match who {
        Some(who) => format!("{who}; wait longer with --wait, or look with `lockkeeper show`"),
        None => "it may be free again by now; wait longer with --wait".into(),
    })
}

/// Who is in the way of the first that somebody is in the way of.
async fn in_the_way(inspect: &dyn DynInspect, wanted: &[Wanted]) -> Option<String> {
    for it in wanted {
        let Some(mut info) = inspect.show(&it.key).await.ok().flatten() else { continue };
        // We may still stand there ourselves, or hold one of several.
        let us = Label::of_this_process();
        let is_other = |it: &Occupant| (&it.label.host, it.label.pid) != (&us.host, us.pid);
        info.waiters.retain(is_other);
        info.holders.retain(is_other);
        let Some(who) = view::in_the_way(&info) else { continue };
        let of_several = if wanted.len() == 1 { String::new() } else { text::quoted(it.key.as_str()) + ": " };
        return Some(of_several + &who);
    }
    None
}
