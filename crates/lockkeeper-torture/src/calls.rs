//! How a worker speaks to the witness.

use std::path::Path;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::Trouble;

/// One connection, for one task.
pub(crate) struct Calls {
    process: String,
    write: OwnedWriteHalf,
    answers: Lines<BufReader<OwnedReadHalf>>,
}

/// The two numbers as they were read; the second only if the fence was not stale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    plain: u64,
    fenced: Option<u64>,
}

impl Calls {
    pub(crate) async fn to(witness: &Path, process: &str) -> Result<Self, Trouble> {
        let (read, write) = UnixStream::connect(witness).await?.into_split();
        Ok(Calls { process: process.to_owned(), write, answers: BufReader::new(read).lines() })
    }

    pub(crate) async fn get(&mut self, key: &str, fence: u64) -> Result<Seen, Trouble> {
        let line = format!("get {key} {fence}");
        seen(&self.ask(&line).await?)
    }

    pub(crate) async fn put(&mut self, key: &str, fence: u64, seen: Seen) -> Result<(), Trouble> {
        let fenced = seen.fenced.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let line = format!("put {key} {fence} {} {fenced}", seen.plain);
        self.ask(&line).await.map(drop)
    }

    /// As a reader, who shares.
    pub(crate) async fn look(&mut self, key: &str, fence: u64) -> Result<Seen, Trouble> {
        let line = format!("look {key} {fence}");
        seen(&self.ask(&line).await?)
    }

    /// Once more, if the first look was no stale one: nobody may have written meanwhile.
    pub(crate) async fn look_again(&mut self, key: &str, fence: u64, before: Seen) -> Result<(), Trouble> {
        let Some(fenced) = before.fenced else { return Ok(()) };
        let line = format!("again {key} {fence} {fenced}");
        self.ask(&line).await.map(drop)
    }

    pub(crate) async fn tick(&mut self) -> Result<(), Trouble> {
        let line = format!("tick {}", self.process);
        self.ask(&line).await.map(drop)
    }

    async fn ask(&mut self, line: &str) -> Result<String, Trouble> {
        self.write.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(self.answers.next_line().await?.ok_or("the witness is gone")?)
    }
}

fn seen(answer: &str) -> Result<Seen, Trouble> {
    let (plain, fenced) = answer.split_once(' ').ok_or("the witness is not understood")?;
    Ok(Seen { plain: plain.parse()?, fenced: fenced.parse().ok() })
}
