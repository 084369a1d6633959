//! Processes that begin together and answer one number each.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::child::CHILD;
use crate::Answer;

/// The children, ended with it.
pub(super) struct Crew(Vec<(Child, BufReader<ChildStdout>)>);

impl Crew {
    /// So many, each ready to begin.
    pub(super) fn start(count: usize, words: &[&str]) -> Answer<Self> {
        let mut crew = Crew(Vec::new());
        for _ in 0..count {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg(CHILD).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn()?;
            let lines = BufReader::new(child.stdout.take().ok_or("no output")?);
            crew.0.push((child, lines));
        }
        for (_, lines) in &mut crew.0 {
            let mut ready = String::new();
            lines.read_line(&mut ready)?;
            if ready.trim() != "ready" {
                return Err(format!("a process of {words:?} did not begin").into());
            }
        }
        Ok(crew)
    }

    pub(super) fn go(&mut self) -> Answer<()> {
        self.tell("go")
    }

    /// Say this to each of them.
    pub(super) fn tell(&mut self, words: &str) -> Answer<()> {
        let line = format!("{words}\n");
        for (child, _) in &mut self.0 {
            child.stdin.as_mut().ok_or("no input")?.write_all(line.as_bytes())?;
        }
        Ok(())
    }

    /// What each answers, at its end or to what it was told.
    pub(super) fn numbers(&mut self) -> Answer<Vec<u64>> {
        let mut numbers = Vec::new();
        for (_, lines) in &mut self.0 {
            let mut answer = String::new();
            lines.read_line(&mut answer)?;
            numbers.push(answer.trim().parse().map_err(|it| format!("a process said {answer:?}: {it}"))?);
        }
        Ok(numbers)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
