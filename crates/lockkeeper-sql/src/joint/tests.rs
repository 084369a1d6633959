//! The work of a connection, polled by hand.

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
        let joint = Joint::start(
            own.handle(),
            async move {
                while let Some((server, reply)) = inbox.recv().await {
                    server.await.expect("as planned: a server that vanishes");
                    let _ = reply.send("answer");
                }
            },
            None,
        );
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
