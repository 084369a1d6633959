//! A connection's work that whoever waits for an answer does itself, and our own thread where nobody is alone.
//!
//! A connection lives on our own thread, which always runs. If a task there did all the work, each question would cross to
//! that thread and its answer back, which costs a lone caller more than the server does. So a caller that is the only one
//! who waits polls the connection in its own task: what it asks is written to the socket at once. As soon as two wait, or
//! nobody, our own thread polls, and a caller that is not polled any more holds up nobody but itself.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use lockkeeper_core::kit::locked;
use tokio::runtime::Handle;

/// How often the work is polled at once while it wakes itself, before our own thread goes on.
const ROUNDS_MAX: u32 = 32;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The work of one connection. It ends when it is done, or is told to; dropping this does not end it.
#[derive(Clone)]
pub(crate) struct Joint(Arc<Shared>);

struct Shared {
    work: Mutex<Option<Work>>,
    crew: Arc<Crew>,
}

/// Who is woken for the work. It is the waker that the work knows, whoever polls it.
struct Crew(Mutex<State>);

struct State {
    /// Those who wait for answers, and how to wake each.
    askers: Vec<(u64, Waker)>,
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
        let alone = if let [(_, asker)] = &state.askers[..] { Some(asker.clone()) } else { None };
        // Whoever was woken before and did not come may never come.
        let own = if alone.is_none() || state.owed { state.own.clone() } else { None };
        state.owed = alone.is_some();
        drop(state);
        alone.into_iter().chain(own).for_each(Waker::wake);
    }
}

impl Joint {
    /// Begin, on this runtime where nobody else is alone with the work.
    pub(crate) fn start(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) -> Self {
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
        let shared =
            Arc::new(Shared { work: Mutex::new(Some(work)), crew: Arc::new(Crew(Mutex::new(state))) });
        let joint = Joint(shared);
        runtime.spawn(Own(joint.clone()));
        joint
    }

    /// Wait for an answer of the connection, and do its work meanwhile if nobody else waits.
    pub(crate) async fn ask<T>(&self, mut answer: Pin<&mut impl Future<Output = T>>) -> T {
        let mut asker = Asker { shared: &self.0, id: None };
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
            let is_open = locked(&self.crew.0).life == Life::Open;
            if !is_open || self.poll_once(&waker) {
                let work = locked(&self.work).take();
                // Whoever waits for an answer learns by this that none will come.
                drop(work);
                locked(&self.crew.0).life = Life::Over;
                return;
            }
            let mut state = locked(&self.crew.0);
            if !std::mem::take(&mut state.again) && state.life == Life::Open {
                return;
            }
        }
        locked(&self.crew.0).again = true;
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
}

impl Asker<'_> {
    fn poll<T>(&mut self, mut answer: Pin<&mut impl Future<Output = T>>, cx: &mut Context<'_>) -> Poll<T> {
        self.sit(cx.waker());
        // What is asked now is sent by us, in the same go.
        if !self.shared.begin() {
            return answer.poll(cx);
        }
        let busy = Busy(self.shared);
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(answer);
        }
        drop(busy);
        answer.poll(cx)
    }

    fn sit(&mut self, waker: &Waker) {
        let mut state = locked(&self.shared.crew.0);
        if let Some(id) = self.id {
            if let Some(known) = state.askers.iter_mut().find(|it| it.0 == id) {
                known.1.clone_from(waker);
            }
            return;
        }
        let id = state.asked;
        state.asked += 1;
        state.askers.push((id, waker.clone()));
        self.id = Some(id);
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut state = locked(&self.shared.crew.0);
        state.askers.retain(|it| it.0 != id);
        // It may have been woken for the work, and goes away.
        let own = if std::mem::take(&mut state.owed) { state.own.clone() } else { None };
        drop(state);
        own.into_iter().for_each(Waker::wake);
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
struct Own(Joint);

impl Future for Own {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let shared = &*self.0.0;
        locked(&shared.crew.0).own = Some(cx.waker().clone());
        shared.poll_work();
        if locked(&shared.crew.0).life == Life::Over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // The runtime ends, and the connection's socket with it.
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    type Asking<'a> = Pin<Box<dyn Future<Output = Option<&'static str>> + 'a>>;
    type Question = (oneshot::Receiver<()>, oneshot::Sender<&'static str>);

    /// A connection whose server answers when it is told to, one question after the other.
    struct Site {
        /// It runs only when a test says so.
        own: Runtime,
        joint: Joint,
        questions: mpsc::UnboundedSender<Question>,
    }

    impl Site {
        fn new() -> Self {
            let own = Builder::new_current_thread().build().unwrap();
            let (questions, mut inbox) = mpsc::unbounded_channel::<Question>();
            let joint = Joint::start(own.handle(), async move {
                while let Some((server, reply)) = inbox.recv().await {
                    server.await.expect("as planned: a server that vanishes");
                    let _ = reply.send("answer");
                }
            });
            let site = Site { own, joint, questions };
            site.run_own();
            site
        }

        /// A question, and what lets the server answer it.
        fn ask(&self) -> (Asking<'_>, oneshot::Sender<()>) {
            let (answer, server) = oneshot::channel();
            let asking = async move {
                let (reply, heard) = oneshot::channel();
                self.questions.send((server, reply)).ok()?;
                heard.await.ok()
            };
            (Box::pin(async move { self.joint.ask(std::pin::pin!(asking)).await }), answer)
        }

        fn run_own(&self) {
            self.own.block_on(async {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
            });
        }
    }

    /// A task that counts how often it is woken. Relaxed: on one thread.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A caller's task, polled by hand.
    #[derive(Default)]
    struct Task(Arc<Woken>);

    impl Task {
        fn poll<T>(&self, future: &mut Pin<Box<dyn Future<Output = T> + '_>>) -> Poll<T> {
            self.0.0.store(0, Ordering::Relaxed);
            future.as_mut().poll(&mut Context::from_waker(&Waker::from(self.0.clone())))
        }

        fn is_woken(&self) -> bool {
            self.0.0.load(Ordering::Relaxed) != 0
        }
    }

    #[test]
    fn whoever_is_alone_does_the_work_itself() {
        let (site, task) = (Site::new(), Task::default());
        let (mut asking, server) = site.ask();
        assert_eq!(task.poll(&mut asking), Poll::Pending);
        server.send(()).unwrap();
        assert!(task.is_woken());
        assert_eq!(task.poll(&mut asking), Poll::Ready(Some("answer")), "our own thread did nothing");
        let (mut asking, server) = site.ask();
        server.send(()).unwrap();
        assert_eq!(task.poll(&mut asking), Poll::Ready(Some("answer")), "asked and answered in one go");
    }

    #[test]
    fn whoever_is_not_polled_holds_up_nobody() {
        let (site, [stuck, task]) = (Site::new(), [Task::default(), Task::default()]);
        let (mut never, first) = site.ask();
        assert_eq!(stuck.poll(&mut never), Poll::Pending);
        let (mut asking, second) = site.ask();
        assert_eq!(task.poll(&mut asking), Poll::Pending);
        first.send(()).unwrap();
        assert!(!task.is_woken(), "two wait: it is for our own thread");
        second.send(()).unwrap();
        site.run_own();
        assert!(task.is_woken() && stuck.is_woken(), "both are answered");
        assert_eq!(task.poll(&mut asking), Poll::Ready(Some("answer")));
    }

    #[test]
    fn whoever_was_woken_and_does_not_come_is_not_waited_for() {
        let (site, [stuck, task]) = (Site::new(), [Task::default(), Task::default()]);
        let (mut never, server) = site.ask();
        assert_eq!(stuck.poll(&mut never), Poll::Pending);
        server.send(()).unwrap();
        assert!(stuck.is_woken(), "it was alone");
        // It goes away instead, and the next one is alone.
        drop(never);
        site.run_own();
        let (mut asking, server) = site.ask();
        server.send(()).unwrap();
        assert_eq!(task.poll(&mut asking), Poll::Ready(Some("answer")));
    }

    #[test]
    fn the_work_of_one_who_goes_away_is_done_by_our_own_thread() {
        let (site, task) = (Site::new(), Task::default());
        let (mut asking, server) = site.ask();
        assert_eq!(task.poll(&mut asking), Poll::Pending);
        drop(asking);
        let (mut reply, heard) = {
            let (reply, heard) = oneshot::channel();
            (Some(reply), heard)
        };
        let (open, done) = oneshot::channel();
        site.questions.send((done, reply.take().unwrap())).unwrap();
        open.send(()).unwrap();
        server.send(()).unwrap();
        site.run_own();
        assert_eq!(site.own.block_on(heard), Ok("answer"));
    }

    #[test]
    fn the_end_drops_the_work_and_tells_whoever_waits() {
        let (site, task) = (Site::new(), Task::default());
        let (mut asking, _server) = site.ask();
        assert_eq!(task.poll(&mut asking), Poll::Pending);
        site.joint.end();
        assert!(task.is_woken());
        assert_eq!(task.poll(&mut asking), Poll::Ready(None));
        assert!(site.questions.is_closed());
        let (mut asking, _server) = site.ask();
        assert_eq!(task.poll(&mut asking), Poll::Ready(None));
    }

    #[test]
    fn a_panic_in_the_work_ends_it_and_not_its_caller() {
        let (site, task) = (Site::new(), Task::default());
        let (mut asking, server) = site.ask();
        drop(server);
        assert_eq!(task.poll(&mut asking), Poll::Ready(None));
        assert!(site.questions.is_closed());
    }

    #[test]
    fn the_work_ends_with_our_own_runtime() {
        let Site { own, joint: _joint, questions } = Site::new();
        drop(own);
        assert!(questions.is_closed());
    }
}
