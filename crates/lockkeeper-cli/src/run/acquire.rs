//! Getting the lock: wait or try, tell who is in the way, and leave the line when a signal comes.

use std::pin::pin;
use std::time::Duration;

use lockkeeper::spi::{Clock, DynInspect};
use lockkeeper::{Error, Guard, Key, Label, LockRequest, Locker, Owner};

use crate::args::Run;
use crate::exit::{self, Failure, Result};
use crate::run::signals::{Incoming, Signals};
use crate::{output, text, view};

pub(crate) enum Acquired {
    Guard(Guard),
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
    key: &Key,
    args: &Run,
    signals: &mut Signals,
) -> Result<Acquired> {
    let request = request(locker, key, args);
    let asked = {
        // Not to wait at all is to try: an answer takes time, and a free lock shall be had.
        let attempt = args.attempt || args.wait == Some(Duration::ZERO);
        let mut asked = pin!(ask(request, attempt));
        let mut notice = pin!(tell_later(inspect, key));
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
        Ok(Ok(Some(guard))) => return Ok(Acquired::Guard(guard)),
        Ok(Ok(None)) => Err(busy(inspect, key, "at once").await),
        Ok(Err(Error::TimedOut { waited, .. })) => {
            Err(busy(inspect, key, &format!("within {}", output::span(waited))).await)
        }
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => Ok(Acquired::Interrupted(signal.as_raw())),
    };
    // Whoever stands behind us in line need not wait for our ttl. If the store does not answer, they must.
    let _ = locker.shutdown(LEAVE_MAX).await;
    ended
}

async fn ask(request: LockRequest, attempt: bool) -> lockkeeper::Result<Option<Guard>> {
    if attempt { request.attempt().await } else { request.await.map(Some) }
}

fn request(locker: &Locker, key: &Key, args: &Run) -> LockRequest {
    let mut request = locker.lock_key(Ok(key.clone())).ttl(args.ttl()).owner(&Owner::new(user()));
    if let Some(note) = &args.note {
        request = request.note(note);
    }
    if let Some(max_hold) = args.max_hold {
        request = request.max_hold(max_hold);
    }
    request.wait_at_most(args.wait.unwrap_or(Duration::MAX))
}

/// The person behind the command, for `ls`.
fn user() -> String {
    let named = |it| std::env::var(it).ok().filter(|it| !it.is_empty());
    let by_number = || format!("uid:{}", rustix::process::getuid());
    named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(by_number)
}

/// After a while tell a person at the terminal what we wait for.
async fn tell_later(inspect: &dyn DynInspect, key: &Key) {
    use std::io::IsTerminal as _;
    if std::io::stderr().is_terminal() {
        Clock::boot().sleep(SILENT_MAX).await;
        let name = text::quoted(key.as_str());
        match inspect.show(key).await.ok().flatten().as_ref().and_then(view::in_the_way) {
            Some(who) => output::say(&format!("waiting for {name}: {who}")),
            None => output::say(&format!("waiting for {name}")),
        }
    }
    std::future::pending::<()>().await;
}

async fn busy(inspect: &dyn DynInspect, key: &Key, when: &str) -> Failure {
    let name = text::quoted(key.as_str());
    let mut info = inspect.show(key).await.ok().flatten();
    if let Some(info) = &mut info {
        // We may still stand there ourselves.
        let us = Label::of_this_process();
        info.waiters.retain(|it| (&it.label.host, it.label.pid) != (&us.host, us.pid));
    }
    let failure = Failure::new(exit::BUSY, format!("the lock {name} was not obtained {when}"));
    failure.or_hint(|| match info.as_ref().and_then(view::in_the_way) {
        Some(who) => format!("{who}; wait longer with --wait, or look with `lockkeeper show`"),
        None => "it may be free again by now; wait longer with --wait".into(),
    })
}
