//! A list of locks that stays on the screen and follows them: `top`, and `ls --watch` on a terminal.
//!
//! Each picture is one write that overwrites the last one from its first line, and clears only what is left of it: the
//! screen is never empty between two pictures, so nothing flickers.

use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use lockkeeper::Store;
use lockkeeper::spi::{Clock, LockInfo};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::exit::{self, Failure, Result};
use crate::looking::{self, Sort};
use crate::output::{self, span};
use crate::screen::{Screen, Tone};
use crate::{table, text};

/// What stands above and below the list.
pub(crate) struct Frame {
    pub(crate) command: &'static str,
    /// The store's URL, fit to print.
    pub(crate) store: String,
    pub(crate) sort: Sort,
}

/// What was seen last.
pub(crate) type Seen = std::result::Result<Vec<LockInfo>, String>;

/// One look at the store.
pub(crate) async fn look(store: &Store, prefix: &str, sort: Sort) -> Seen {
    let mut locks = store.inspect.list(prefix).await.map_err(|it| Failure::from(it).text)?;
    sort.apply(&mut locks);
    Ok(locks)
}

impl Frame {
    /// The whole picture, line by line, at most as high as the screen.
    pub(crate) fn lines(&self, seen: &Seen, every: Option<Duration>, screen: Screen) -> Vec<String> {
        let fitting = |it: String| screen.width.map_or(it.clone(), |width| table::shortened(&it, width));
        let pace = every.map(|it| format!("  every {}", span(it))).unwrap_or_default();
        let title = format!("lockkeeper {}  {}{pace}  by {}", self.command, self.store, self.sort.word());
        let mut lines = vec![screen.paint(&fitting(title), Tone::Heading)];
        match seen {
            Ok(locks) => {
                lines.push(fitting(summary(locks)));
                lines.push(String::new());
                lines.extend(looking::lines(locks, screen));
            }
            Err(fault) => {
                let fault = fitting(text::message(&text::without_secrets(fault)).replace('\n', " "));
                lines.push(screen.paint(&fault, Tone::Bad));
            }
        }
        if every.is_some() {
            let room = screen.height.map_or(usize::MAX, |it| it.saturating_sub(1).max(1));
            if room < lines.len() {
                let hidden = lines.len() - room + 1;
                lines.truncate(room - 1);
                lines.push(screen.paint(&fitting(format!("… {hidden} more")), Tone::Quiet));
            }
            lines.push(screen.paint(&fitting(KEYS.to_owned()), Tone::Quiet));
        }
        lines
    }
}

const KEYS: &str = "q quit   sort: w waiters  h held for  v valid for  n name";

fn summary(locks: &[LockInfo]) -> String {
    let held: usize = locks.iter().map(|it| it.holders.len()).sum();
    let waiting: usize = locks.iter().map(|it| it.waiters.len()).sum();
    let longest = locks.iter().flat_map(|it| &it.waiters).filter_map(|it| it.since).max();
    let longest = longest.map(|it| format!(", the longest for {}", span(it))).unwrap_or_default();
    format!("{} locks, {held} holders, {waiting} waiting{longest}", locks.len())
}

/// Show the list until somebody ends it.
pub(crate) async fn live(store: &Store, prefix: &str, every: Duration, mut frame: Frame) -> Result<u8> {
    let mut keys = keys();
    let refused = |it| Failure::system("signals cannot be heard", &it);
    let mut interrupted = signal(SignalKind::interrupt()).map_err(refused)?;
    let mut ended = signal(SignalKind::terminate()).map_err(refused)?;
    let mut resized = signal(SignalKind::window_change()).map_err(refused)?;
    let _picture = Picture::begin()?;
    let mut seen: Seen = Ok(Vec::new());
    let mut look_again = true;
    loop {
        if look_again {
            seen = tokio::select! {
                seen = look(store, prefix, frame.sort) => seen,
                _ = interrupted.recv() => return Ok(exit::of_signal(SIGINT)),
                _ = ended.recv() => return Ok(exit::of_signal(SIGTERM)),
            };
        }
        let screen = Screen::now();
        if !output::is_heard(&picture(&frame.lines(&seen, Some(every), screen)))? {
            return Ok(0);
        }
        look_again = false;
        let key = tokio::select! {
            () = Clock::boot().sleep(every) => {
                look_again = true;
                None
            }
            _ = resized.recv() => None,
            Some(key) = keys.recv() => Some(key),
            _ = interrupted.recv() => return Ok(exit::of_signal(SIGINT)),
            _ = ended.recv() => return Ok(exit::of_signal(SIGTERM)),
        };
        frame.sort = match key {
            Some(b'q') => return Ok(0),
            Some(b'w') => Sort::Waiters,
            Some(b'h') => Sort::Held,
            Some(b'v') => Sort::Valid,
            Some(b'n') => Sort::Name,
            Some(_) | None => frame.sort,
        };
        if let Ok(locks) = &mut seen {
            frame.sort.apply(locks);
        }
    }
}

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// The lines over what is on the screen: each is cleared behind its end, and all below the last.
fn picture(lines: &[String]) -> String {
    format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"))
}

/// Keys as they are typed. The thread that reads them ends with the process.
fn keys() -> mpsc::UnboundedReceiver<u8> {
    let (sender, receiver) = mpsc::unbounded_channel();
    if std::io::stdin().is_terminal() {
        std::thread::spawn(move || {
            let mut key = [0];
            while let Ok(1) = std::io::stdin().read(&mut key) {
                if sender.send(key[0]).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}

/// The screen is ours, and is given back as it was: its text, its cursor, its way to read keys.
struct Picture {
    before: Option<Termios>,
}

impl Picture {
    fn begin() -> Result<Self> {
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            let mut ours = before.clone();
            // Keys come one by one and are not shown; Ctrl-C stays a signal.
            ours.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            ours.special_codes[SpecialCodeIndex::VMIN] = 1;
            ours.special_codes[SpecialCodeIndex::VTIME] = 0;
            let set = tcsetattr(std::io::stdin(), OptionalActions::Now, &ours);
            set.map_err(|it| Failure::system("the terminal cannot be used", &it))?;
        }
        output::data("\x1b[?1049h\x1b[?25l")?;
        Ok(Picture { before })
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        let _ = output::data("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::spi::Occupant;
    use lockkeeper::{Key, Label};
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    fn many(count: usize) -> Vec<LockInfo> {
        let occupant = || Occupant::new(Label::of_this_process(), Duration::from_secs(9));
        let waits = || occupant().since(Some(Duration::from_secs(3)));
        let lock = |at| LockInfo::new(Key::new(&format!("k{at}")).unwrap(), vec![occupant()], vec![waits()]);
        (0..count).map(lock).collect()
    }

    fn frame() -> Frame {
        Frame { command: "top", store: "redis://***@db-1".into(), sort: Sort::Waiters }
    }

    #[test]
    fn the_store_and_the_sums_are_on_the_screen() {
        let lines = frame().lines(&Ok(many(3)), None, Screen::default());
        assert_eq!(lines[0], "lockkeeper top  redis://***@db-1  by waiters");
        assert_eq!(lines[1], "3 locks, 3 holders, 3 waiting, the longest for 3s");
        assert_eq!(lines.len(), 7, "{lines:?}");
    }

    #[test]
    fn a_picture_is_never_larger_than_its_screen() {
        let fault = Err("no answer from redis://u:hunter2@h\nat all".to_owned());
        for seen in [Ok(many(0)), Ok(many(5)), Ok(many(500)), fault] {
            for (width, height) in [(1, 1), (20, 2), (40, 5), (80, 24), (300, 100)] {
                let screen = Screen { width: Some(width), height: Some(height), ..Screen::default() };
                let lines = frame().lines(&seen, Some(Duration::from_secs(1)), screen);
                assert!(lines.len() <= height.max(2), "{width}x{height}: {}", lines.len());
                for line in &lines {
                    assert!(line.width() <= width, "{width}: {line:?}");
                    assert!(!line.contains("hunter2"), "{line:?}");
                }
            }
        }
    }

    #[test]
    fn a_picture_clears_nothing_before_it_writes() {
        assert_eq!(picture(&["a".into(), "b".into()]), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
    }
}
