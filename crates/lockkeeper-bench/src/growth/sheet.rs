//! What was measured on one store, and how a process that measured a part of it tells that: a line for each figure.

use std::time::Duration;

use super::held::Held;
use super::line::Curve;
use super::waiting::{Idle, Waiting};
use crate::Answer;
use crate::site::Store;

/// What was measured on one store.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sheet {
    pub(super) store: Store,
    pub(super) lines: Curve,
    pub(super) held: Vec<Held>,
    pub(super) waiting: Option<Waiting>,
    pub(super) idle: Option<Idle>,
    /// The stages that were ended before they had come to their end.
    pub(super) cut_short: Vec<String>,
}

/// One figure, or some that belong together.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Figures {
    /// So many in line, and what a hand-off takes; nothing if the line was not grown so far.
    Line(usize, Option<f64>),
    Held(Held),
    Waiting(Waiting),
    Idle(Idle),
    /// This stage took too long: nothing more comes of it.
    CutShort(String),
}

const NONE: &str = "-";

fn optional(number: Option<f64>) -> String {
    number.map_or(NONE.to_owned(), |it| it.to_string())
}

impl Waiting {
    fn line(&self) -> String {
        let Waiting { names, holders, requests, bytes } = self;
        format!("waiting {names} {holders} {requests} {} {}", bytes.0, bytes.1)
    }
}

impl Figures {
    pub(super) fn line(&self) -> String {
        match self {
            Figures::Line(size, time) => format!("line {size} {}", optional(*time)),
            Figures::Held(it) => format!(
                "held {} {} {} {} {} {} {} {} {} {}",
                it.locks,
                it.taken,
                it.valid,
                it.requests,
                it.busy.0,
                it.busy.1,
                it.list.as_secs_f64(),
                it.listed,
                it.bytes.0,
                it.bytes.1
            ),
            Figures::Waiting(it) => it.line(),
            Figures::Idle(it) => format!("idle {} {} {}", it.names, it.bytes.0, it.bytes.1),
            Figures::CutShort(stage) => format!("cut-short {stage}"),
        }
    }

    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at)?.parse::<f64>().ok();
        let whole = |at: usize| words.get(at)?.parse::<usize>().ok();
        Some(match (words[0], words.len()) {
            ("line", 3) => Figures::Line(whole(1)?, number(2)),
            ("held", 11) => Figures::Held(Held {
                locks: whole(1)?,
                taken: number(2)?,
                valid: whole(3)?,
                requests: number(4)?,
                busy: (number(5)?, number(6)?),
                list: Duration::try_from_secs_f64(number(7)?).ok()?,
                listed: whole(8)?,
                bytes: (number(9)?, number(10)?),
            }),
            ("waiting", 6) => Figures::Waiting(Waiting {
                names: whole(1)?,
                holders: number(2)?,
                requests: number(3)?,
                bytes: (number(4)?, number(5)?),
            }),
            ("idle", 4) => Figures::Idle(Idle { names: whole(1)?, bytes: (number(2)?, number(3)?) }),
            ("cut-short", 2) => Figures::CutShort(words[1].to_owned()),
            _ => return None,
        })
    }
}

impl Sheet {
    /// Nothing is known yet.
    pub(super) fn of(store: Store) -> Self {
        let (lines, held, cut_short) = (Vec::new(), Vec::new(), Vec::new());
        Sheet { store, lines, held, waiting: None, idle: None, cut_short }
    }

    /// Note what a process told.
    pub(super) fn read(&mut self, line: &str) -> Answer<()> {
        match Figures::read(line).ok_or_else(|| format!("`{line}` is no figure"))? {
            Figures::Line(size, time) => self.lines.push((size, time)),
            Figures::Held(held) => self.held.push(held),
            Figures::Waiting(waiting) => self.waiting = Some(waiting),
            Figures::Idle(idle) => self.idle = Some(idle),
            Figures::CutShort(stage) => self.cut_short.push(stage),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_tells_is_what_it_measured() {
        let held = Held {
            locks: 1000,
            taken: 2345.25,
            valid: 999,
            requests: 0.5,
            busy: (0.125, 0.25),
            list: Duration::from_millis(125),
            listed: 1000,
            bytes: (1500.5, 0.0),
        };
        let waiting = Waiting { names: 1000, holders: 0.25, requests: 1.5, bytes: (2048.0, 300.5) };
        let idle = Idle { names: 10_000, bytes: (700.0, 120.0) };
        let told = [
            Figures::Line(1, Some(41.75)),
            Figures::Line(10_000, None),
            Figures::Held(held.clone()),
            Figures::Waiting(waiting.clone()),
            Figures::Idle(idle.clone()),
            Figures::CutShort("held".to_owned()),
        ];
        let mut sheet = Sheet::of(Store::Redis);
        for it in &told {
            sheet.read(&it.line()).unwrap();
        }
        let lines = vec![(1, Some(41.75)), (10_000, None)];
        let (held, cut_short) = (vec![held], vec!["held".to_owned()]);
        let all =
            Sheet { store: Store::Redis, lines, held, waiting: Some(waiting), idle: Some(idle), cut_short };
        assert_eq!(sheet, all);
        assert!(sheet.read("held 1 2 3").is_err() && sheet.read("").is_err());
    }
}
