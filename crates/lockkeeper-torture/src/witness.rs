//! The resource that the locks protect: two numbers for each name, one guarded by fences and one not, and whoever adds
//! to them. It lives in the parent, which no fault touches, and sees everything in one order.
//!
//! ```text
//! get KEY FENCE               → PLAIN FENCED       the two numbers; `-` for the second if the fence is stale
//! put KEY FENCE PLAIN FENCED  → ok | stale         the numbers that were read: one is added to each
//! look KEY FENCE              → PLAIN FENCED       the same as `get`, for one who shares
//! again KEY FENCE FENCED      → ok | stale         what such a one has read must still be there
//! tick PROCESS                → ok                 a round is done
//! ```

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::spi::{Clock, Moment};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::Trouble;

/// What the witness has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Updates that overwrote one they had not read, where nobody checks fences: E.
    pub lost: u64,
    /// The same, although fences are checked, and what changed under the eyes of a reader: F.
    pub fenced_lost: u64,
    /// Reads and writes that a fence refused.
    pub refused: u64,
    /// Updates in all.
    pub puts: u64,
}

/// The witness, and the socket by which workers speak to it.
pub struct Witness {
    shared: Arc<Shared>,
    path: PathBuf,
    task: AbortHandle,
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Witness").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    rounds: watch::Sender<BTreeMap<String, u64>>,
}

#[derive(Default)]
struct State {
    numbers: HashMap<String, Numbers>,
    counts: Counts,
}

#[derive(Clone, Copy, Default)]
struct Numbers {
    plain: u64,
    fenced: u64,
    /// The largest fence of anybody who was alone.
    fence: u64,
    /// The largest fence of a reader. Readers do not refuse each other, and refuse an earlier writer.
    shared: u64,
}

impl Numbers {
    fn refuses_writer(&self, fence: u64) -> bool {
        fence < self.fence.max(self.shared)
    }
}

impl Witness {
    /// A witness that listens in this folder. Needs a runtime.
    ///
    /// # Errors
    /// If the system refuses the socket.
    pub fn start(folder: &Path) -> Result<Self, Trouble> {
        let path = folder.join("witness");
        let listener = UnixListener::bind(&path)?;
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(serve(listener, Arc::clone(&shared))).abort_handle();
        Ok(Witness { shared, path, task })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it has seen so far.
    pub fn counts(&self) -> Counts {
        self.shared.state().counts
    }

    /// How many rounds each process has done.
    pub fn rounds(&self) -> BTreeMap<String, u64> {
        self.shared.rounds.borrow().clone()
    }

    /// Wait until each of these processes has done so many rounds more than in `before`, for at most `within`; the
    /// names of those that have not.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn served(
        &self,
        processes: &[String],
        before: &BTreeMap<String, u64>,
        more: u64,
        within: Duration,
    ) -> Vec<String> {
        let missing = |now: &BTreeMap<String, u64>| -> Vec<String> {
            let of = |all: &BTreeMap<String, u64>, it: &String| all.get(it).copied().unwrap_or(0);
            processes.iter().filter(|it| of(now, it) < of(before, it) + more).cloned().collect()
        };
        let mut rounds = self.shared.rounds.subscribe();
        let until: Moment = Clock::boot().now().after(within);
        let all_done = Box::pin(rounds.wait_for(|it| missing(it).is_empty()));
        match Clock::boot().within(until, all_done).await {
            Some(_) => Vec::new(),
            None => missing(&self.rounds()),
        }
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["tick", process] => {
                self.count(process);
                Some("ok".to_owned())
            }
            ["get", key, fence] => Some(self.state().get(key, fence.parse().ok()?)),
            ["look", key, fence] => Some(self.state().look(key, fence.parse().ok()?)),
            ["again", key, fence, fenced] => {
                Some(self.state().again(key, fence.parse().ok()?, fenced.parse().ok()?))
            }
            ["put", key, fence, plain, fenced] => {
                let (fence, plain) = (fence.parse().ok()?, plain.parse().ok()?);
                Some(self.state().put(key, fence, plain, fenced.parse().ok()))
            }
            _ => None,
        }
    }

    fn count(&self, process: &str) {
        self.rounds.send_modify(|it| *it.entry(process.to_owned()).or_default() += 1);
    }
}

impl State {
    fn get(&mut self, key: &str, fence: u64) -> String {
        let numbers = self.numbers.entry(key.to_owned()).or_default();
        // Reading raises the fence: otherwise an old writer could slip in between our read and our first write.
        if numbers.refuses_writer(fence) {
            self.counts.refused += 1;
            return format!("{} -", numbers.plain);
        }
        numbers.fence = fence;
        format!("{} {}", numbers.plain, numbers.fenced)
    }

    fn look(&mut self, key: &str, fence: u64) -> String {
        let numbers = self.numbers.entry(key.to_owned()).or_default();
        if fence < numbers.fence {
            self.counts.refused += 1;
            return format!("{} -", numbers.plain);
        }
        numbers.shared = numbers.shared.max(fence);
        format!("{} {}", numbers.plain, numbers.fenced)
    }

    fn again(&mut self, key: &str, fence: u64, fenced: u64) -> String {
        let numbers = self.numbers.entry(key.to_owned()).or_default();
        if fence < numbers.fence {
            self.counts.refused += 1;
            return "stale".to_owned();
        }
        // A writer with a larger fence would refuse us now, and one with a smaller fence was refused because of us.
        self.counts.fenced_lost += u64::from(numbers.fenced != fenced);
        "ok".to_owned()
    }

    fn put(&mut self, key: &str, fence: u64, plain: u64, fenced: Option<u64>) -> String {
        let numbers = self.numbers.entry(key.to_owned()).or_default();
        self.counts.puts += 1;
        self.counts.lost += u64::from(numbers.plain != plain);
        numbers.plain = plain + 1;
        let Some(fenced) = fenced else { return "stale".to_owned() };
        if numbers.refuses_writer(fence) {
            self.counts.refused += 1;
            return "stale".to_owned();
        }
        self.counts.fenced_lost += u64::from(numbers.fenced != fenced);
        numbers.fence = fence;
        numbers.fenced = fenced + 1;
        "ok".to_owned()
    }
}

async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    let mut talks = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                talks.spawn(talk(stream, Arc::clone(&shared)));
            }
            Some(_) = talks.join_next() => {}
        }
    }
}

/// Until the worker hangs up, or says what nobody understands.
async fn talk(stream: UnixStream, shared: Arc<Shared>) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(answer) = shared.answer(&line) else { return };
        if write.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_that_was_not_read_is_lost_and_a_stale_one_is_refused() {
        let shared = Shared::default();
        let ask = |line: &str| shared.answer(line).unwrap();
        assert_eq!(ask("get k 5"), "0 0");
        assert_eq!(ask("get k 6"), "0 0");
        assert_eq!(ask("put k 6 0 0"), "ok");
        // The old holder wakes: its plain update overwrites the other, its fenced one is refused.
        assert_eq!(ask("put k 5 0 0"), "stale");
        assert_eq!(ask("get k 5"), "1 -");
        let counts = shared.state().counts;
        assert_eq!(counts, Counts { lost: 1, fenced_lost: 0, refused: 2, puts: 2 });
        // Two with one fence: nobody is refused, and an update is lost all the same.
        assert_eq!((ask("get k 7"), ask("get k 7")), ("1 1".to_owned(), "1 1".to_owned()));
        assert_eq!((ask("put k 7 1 1"), ask("put k 7 1 1")), ("ok".to_owned(), "ok".to_owned()));
        assert_eq!(shared.state().counts.fenced_lost, 1);
        assert_eq!((ask("tick b"), ask("tick b")), ("ok".to_owned(), "ok".to_owned()));
        assert_eq!(shared.rounds.borrow()["b"], 2);
        assert_eq!(shared.answer("nonsense"), None);
    }

    #[test]
    fn readers_do_not_refuse_each_other_and_are_refused_after_a_later_writer() {
        let shared = Shared::default();
        let ask = |line: &str| shared.answer(line).unwrap();
        assert_eq!(
            [ask("get k 4"), ask("put k 4 0 0"), ask("look k 6"), ask("look k 5")],
            ["0 0", "ok", "1 1", "1 1"]
        );
        assert_eq!([ask("again k 5 1"), ask("again k 6 1")], ["ok", "ok"]);
        // An earlier writer comes too late, because somebody reads by now.
        assert_eq!([ask("get k 5"), ask("put k 5 1 1")], ["1 -", "stale"]);
        assert_eq!(shared.state().counts.fenced_lost, 0);
        // A later one may: then the readers are those who are late.
        assert_eq!(
            [ask("get k 7"), ask("put k 7 2 1"), ask("again k 6 1"), ask("look k 6")],
            ["2 1", "ok", "stale", "3 -"]
        );
        assert_eq!(shared.state().counts.fenced_lost, 0);
    }

    #[test]
    fn a_writer_with_the_fence_of_a_reader_is_found_by_what_the_reader_sees() {
        let shared = Shared::default();
        let ask = |line: &str| shared.answer(line).unwrap();
        assert_eq!(
            [ask("look k 5"), ask("get k 5"), ask("put k 5 0 0"), ask("again k 5 0")],
            ["0 0", "0 0", "ok", "ok"]
        );
        assert_eq!(shared.state().counts.fenced_lost, 1);
    }
}
