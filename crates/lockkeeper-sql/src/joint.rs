//! A connection's work that whoever waits for an answer does itself, and our own thread where nobody is alone.
//!
//! A connection lives on our own thread, which always runs. If a task there did all the work, each question would cross to
//! that thread and its answer back, which costs a lone caller more than the server does. So a caller that is the only one
//! who waits polls the connection in its own task: what it asks is written to the socket at once. As soon as two wait, or
//! nobody, our own thread polls, and a caller that is not polled any more holds up nobody but itself.
//!
//! Where the driver lets us, the socket itself is [lent](lending) to the event loop of such a caller.

mod lending;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use lockkeeper_core::Clock;
use lockkeeper_core::clock::Sleep;
use lockkeeper_core::kit::{caller_runtime, locked};
use tokio::runtime::{Handle, Id};

pub(crate) use lending::Socket;
use lending::{LOOK_EVERY, Lending};

/// How often the work is polled at once while it wakes itself, before our own thread goes on.
const ROUNDS_MAX: u32 = 32;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The work of one connection. It ends when it is done, or is told to; dropping this does not end it.
#[derive(Clone)]
pub(crate) struct Joint(Arc<Shared>);

struct Shared {
    work: Mutex<Option<Work>>,
    /// There if the socket can be lent. Used by whoever polls the work.
    lending: Option<Mutex<Lending>>,
    crew: Arc<Crew>,
}

/// Who is woken for the work. It is the waker that the work knows, whoever polls it.
struct Crew(Mutex<State>);

struct State {
    /// Those who wait for answers.
    askers: Vec<Asking>,
    asked: u64,
    /// The task on our own thread.
    own: Option<Waker>,
    /// Somebody polls the work at this moment.
    busy: bool,
    /// There is something to do since it was polled last.
    again: bool,
    /// An asker was woken to poll the work, and has not done so yet.
    owed: bool,
    life: Life,
}

/// One who waits: how to wake it, and the runtime of the task that polled it last, if that is a caller's.
struct Asking {
    id: u64,
    waker: Waker,
    from: Option<Id>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// The work shall be dropped.
    Ending,
    /// It was dropped, or is done.
    Over,
}

impl Wake for Crew {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = locked(&self.0);
        if state.busy {
            state.again = true;
            return;
        }
        let alone = if let [only] = &state.askers[..] { Some(only.waker.clone()) } else { None };
        // Whoever was woken before and did not come may never come.
        let own = if alone.is_none() || state.owed { state.own.clone() } else { None };
        state.owed = alone.is_some();
        drop(state);
        alone.into_iter().chain(own).for_each(Waker::wake);
    }
}

impl Joint {
    /// Begin, on this runtime where nobody else is alone with the work. A socket that is given can be lent.
    pub(crate) fn start(
        runtime: &Handle,
        work: impl Future<Output = ()> + Send + 'static,
        socket: Option<&Arc<dyn Socket>>,
    ) -> Self {
        let state = State {
            askers: Vec::new(),
            asked: 0,
            own: None,
            busy: false,
            again: false,
            owed: false,
            life: Life::Open,
        };
        // Whoever polls it has a budget of its own, which must not run out in the middle of another's answer.
        let work: Work = Box::pin(tokio::task::unconstrained(work));
        let joint = Joint(Arc::new(Shared {
            work: Mutex::new(Some(work)),
            lending: socket.map(|it| Mutex::new(Lending::new(it))),
            crew: Arc::new(Crew(Mutex::new(state))),
        }));
        runtime.spawn(Own { joint: joint.clone(), look: None });
        joint
    }

    /// Wait for an answer of the connection, and do its work meanwhile if nobody else waits.
    pub(crate) async fn ask<T>(&self, mut answer: Pin<&mut impl Future<Output = T>>) -> T {
        let mut asker = Asker { shared: &self.0, id: None, bell: Arc::default() };
        std::future::poll_fn(|cx| asker.poll(answer.as_mut(), cx)).await
    }

    /// Whether it has ended, or will at once.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "only PostgreSQL remembers its sessions")
    )]
    pub(crate) fn is_over(&self) -> bool {
        locked(&self.0.crew.0).life != Life::Open
    }

    /// Drop the work, now or as soon as it is not being polled.
    pub(crate) fn end(&self) {
        let mut state = locked(&self.0.crew.0);
        if state.life == Life::Open {
            state.life = Life::Ending;
        }
        drop(state);
        self.0.poll_work();
    }
}

impl Shared {
    /// Whether the work may be polled by us now. If not, whoever polls it sees that there is more to do.
    fn begin(&self) -> bool {
        let mut state = locked(&self.crew.0);
        if state.busy {
            state.again = true;
            return false;
        }
        (state.busy, state.again, state.owed) = (true, false, false);
        true
    }

    /// Somebody has begun to wait, from a task of this runtime, and has the right to poll the work.
    fn lend(&self, from: Option<&Handle>) {
        let Some(lending) = &self.lending else { return };
        let is_alone = locked(&self.crew.0).askers.len() == 1;
        if locked(lending).asked(from.filter(|_| is_alone)) {
            let own = locked(&self.crew.0).own.clone();
            own.into_iter().for_each(Waker::wake);
        }
    }

    /// Our own thread looks after a socket that is lent. The answer is whether it is.
    fn look(&self) -> bool {
        let Some(lending) = &self.lending else { return false };
        // Whoever polls the work at this moment is moving.
        if self.begin() {
            let _busy = Busy(self);
            let (asked, waits) = {
                let state = locked(&self.crew.0);
                (state.asked, !state.askers.is_empty())
            };
            locked(lending).look(asked, waits);
        }
        locked(lending).is_lent()
    }

    /// Poll the work, unless somebody does.
    fn poll_work(&self) {
        if self.begin() {
            self.poll_on();
        }
    }

    /// Poll the work until it waits for something.
    fn poll_on(&self) {
        let _quiet = Quiet(&self.crew);
        let waker = Waker::from(self.crew.clone());
        for _ in 0..ROUNDS_MAX {
            if !self.begin_round() || self.poll_once(&waker) {
                let work = locked(&self.work).take();
                // Whoever waits for an answer learns by this that none will come.
                drop(work);
                locked(&self.crew.0).life = Life::Over;
                return;
            }
            let state = locked(&self.crew.0);
            if !state.again && state.life == Life::Open {
                return;
            }
        }
        locked(&self.crew.0).again = true;
    }

    /// What came before this is seen by the poll that follows, by the event loop of whoever waits. Whether there is one.
    fn begin_round(&self) -> bool {
        let mut state = locked(&self.crew.0);
        state.again = false;
        if let Some(lending) = &self.lending {
            locked(lending).serve(state.askers.iter().map(|it| it.from));
        }
        state.life == Life::Open
    }

    /// Whether the work is done. A panic in it ends it, and not its caller.
    fn poll_once(&self, waker: &Waker) -> bool {
        let mut work = locked(&self.work);
        let poll = |it: &mut Work| it.as_mut().poll(&mut Context::from_waker(waker)).is_ready();
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().is_none_or(poll)));
        polled.unwrap_or(true)
    }
}

/// Ends a poll. What is left to do is for our own thread.
struct Quiet<'a>(&'a Crew);

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.0.0);
        state.busy = false;
        let own = if state.again || state.life != Life::Open { state.own.clone() } else { None };
        drop(state);
        own.into_iter().for_each(Waker::wake);
    }
}

/// One who waits for an answer.
struct Asker<'a> {
    shared: &'a Shared,
    id: Option<u64>,
    bell: Arc<Bell>,
}

impl Asker<'_> {
    fn poll<T>(&mut self, mut answer: Pin<&mut impl Future<Output = T>>, cx: &Context<'_>) -> Poll<T> {
        let from = self.shared.lending.as_ref().and_then(|_| caller_runtime());
        let is_new = self.sit(cx.waker(), from.as_ref());
        let waker = Waker::from(self.bell.clone());
        let mut heard = Context::from_waker(&waker);
        let is_there = self.bell.come();
        // What is asked now is sent by us, in the same go.
        let busy = self.shared.begin().then(|| Busy(self.shared));
        if is_new && busy.is_some() {
            self.shared.lend(from.as_ref());
        }
        if (is_new || is_there)
            && let Poll::Ready(answer) = answer.as_mut().poll(&mut heard)
        {
            return Poll::Ready(answer);
        }
        drop(busy);
        if self.bell.go(cx.waker()) { answer.poll(&mut heard) } else { Poll::Pending }
    }

    /// Whether it was not there before.
    fn sit(&mut self, waker: &Waker, from: Option<&Handle>) -> bool {
        let (mut state, from) = (locked(&self.shared.crew.0), from.map(Handle::id));
        if let Some(id) = self.id {
            if let Some(known) = state.askers.iter_mut().find(|it| it.id == id) {
                known.waker.clone_from(waker);
                known.from = from;
            }
            return false;
        }
        let id = state.asked;
        state.asked += 1;
        state.askers.push(Asking { id, waker: waker.clone(), from });
        self.id = Some(id);
        true
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut state = locked(&self.shared.crew.0);
        state.askers.retain(|it| it.id != id);
        // It may have been woken for the work, and goes away.
        let own = if std::mem::take(&mut state.owed) { state.own.clone() } else { None };
        drop(state);
        own.into_iter().for_each(Waker::wake);
    }
}

/// How an asker hears of its answer. Most often it has read that itself: then its task is not woken, which costs as much as
/// reading it.
#[derive(Default)]
struct Bell(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    /// The asker's task, while it does not poll.
    asleep: Option<Waker>,
    rung: bool,
}

impl Bell {
    /// The asker polls. Whether there is an answer.
    fn come(&self) -> bool {
        let mut ring = locked(&self.0);
        ring.asleep = None;
        std::mem::take(&mut ring.rung)
    }

    /// It will be woken from now on. Whether there is an answer already.
    fn go(&self, waker: &Waker) -> bool {
        let mut ring = locked(&self.0);
        ring.asleep = Some(waker.clone());
        std::mem::take(&mut ring.rung)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ring = locked(&self.0);
        ring.rung = true;
        let asleep = ring.asleep.take();
        drop(ring);
        asleep.into_iter().for_each(Waker::wake);
    }
}

/// The right to poll the work, which is used up at the end, whatever came before.
struct Busy<'a>(&'a Shared);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.poll_on();
    }
}

/// The task on our own thread.
struct Own {
    joint: Joint,
    /// When to look after a socket that is lent.
    look: Option<Pin<Box<Sleep>>>,
}

impl Own {
    fn look_after_the_socket(&mut self, cx: &mut Context<'_>) {
        let shared = &*self.joint.0;
        if !shared.lending.as_ref().is_some_and(|it| locked(it).is_lent()) {
            self.look = None;
            return;
        }
        let pause = || Box::pin(Clock::boot().sleep(LOOK_EVERY));
        while self.look.get_or_insert_with(pause).as_mut().poll(cx).is_ready() {
            self.look = None;
            if !shared.look() {
                return;
            }
        }
    }
}

impl Future for Own {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let shared = self.joint.0.clone();
        locked(&shared.crew.0).own = Some(cx.waker().clone());
        shared.poll_work();
        self.look_after_the_socket(cx);
        if locked(&shared.crew.0).life == Life::Over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // The runtime ends, and the connection's socket with it.
        self.joint.end();
    }
}

#[cfg(test)]
mod tests;
