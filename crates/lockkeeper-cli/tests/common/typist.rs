//! Somebody who sits at a terminal, types, and reads what it shows.

use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};
use std::sync::mpsc;

use lockkeeper::spi::Clock;

use super::{HANG, Store, unhardened, within};

/// A shell on a terminal of its own, made by script(1) of the package `bsdutils`: always the same one, because shells
/// differ in what Ctrl-C does to them while a command of theirs runs.
pub(crate) struct Typist {
    child: Child,
    printed: mpsc::Receiver<Vec<u8>>,
    unread: String,
}

impl Typist {
    pub(crate) fn sit_down(store: &Store, shell: &str) -> Self {
        let mut command = unhardened("script");
        command.args(["-qec", shell, "/dev/null"]).env("LOCKKEEPER_URL", store.url());
        command.env("SHELL", "/bin/sh").env("LK", env!("CARGO_BIN_EXE_lockkeeper"));
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("script(1) is missing; install the package bsdutils");
        let mut screen = child.stdout.take().unwrap();
        let (sender, printed) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Typist { child, printed, unread: String::new() }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Wait until the screen shows this. One that is painted again and again must show it, too.
    pub(crate) fn sees(&mut self, text: &str) {
        let until = Clock::boot().now().after(HANG);
        while Clock::boot().now() < until {
            if let Some(at) = self.unread.find(text) {
                self.unread.drain(..at + text.len());
                return;
            }
            let bytes = self.printed.recv_timeout(HANG);
            let bytes =
                bytes.unwrap_or_else(|it| panic!("waiting for {text:?}, saw {:?}: {it}", self.unread));
            self.unread.push_str(&String::from_utf8_lossy(&bytes));
        }
        let shown: String = self.unread.chars().take(4_000).collect();
        panic!("waiting for {text:?}, saw {shown:?}");
    }

    /// What the screen shows up to this.
    pub(crate) fn until(&mut self, end: &str) -> String {
        let before = self.unread.clone();
        self.sees(end);
        before.split(end).next().unwrap_or_default().to_owned()
    }

    /// What the screen shows in its next line.
    pub(crate) fn until_line(&mut self) -> String {
        while !self.unread.contains("\r\n") {
            let bytes = self.printed.recv_timeout(HANG).expect("a line");
            self.unread.push_str(&String::from_utf8_lossy(&bytes));
        }
        self.until("\r\n")
    }

    pub(crate) fn code(mut self) -> Option<i32> {
        within("the shell ends", move || self.child.wait().unwrap().code())
    }
}
