//! What was measured on one store, and how a process that measured a part of it tells that: a line for each figure.

use std::time::Duration;

use super::held::Held;
use super::line::Curve;
use super::waiting::Waiting;
use crate::Answer;
use crate::site::Store;

/// What was measured on one store.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sheet {
    pub(super) store: Store,
    pub(super) lines: Curve,
    pub(super) held: Vec<Held>,
    pub(super) waiting: Option<Waiting>,
}

/// One figure, or some that belong together.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Figures {
    /// So many in line, and what a hand-off takes; nothing if the line was not grown so far.
    Line(usize, Option<f64>),
    Held(Held),
    Waiting(Waiting),
}

const NONE: &str = "-";

fn optional(number: Option<f64>) -> String {
    number.map_or(NONE.to_owned(), |it| it.to_string())
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
            Figures::Waiting(it) => format!("waiting {} {} {}", it.requests, it.bytes, optional(it.idle)),
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
            ("waiting", 4) => {
                Figures::Waiting(Waiting { requests: number(1)?, bytes: number(2)?, idle: number(3) })
            }
            _ => return None,
        })
    }
}

impl Sheet {
    /// Nothing is known yet.
    pub(super) fn of(store: Store) -> Self {
        Sheet { store, lines: Vec::new(), held: Vec::new(), waiting: None }
    }

    /// Note what a process told.
    pub(super) fn read(&mut self, line: &str) -> Answer<()> {
        match Figures::read(line).ok_or_else(|| format!("`{line}` is no figure"))? {
            Figures::Line(size, time) => self.lines.push((size, time)),
            Figures::Held(held) => self.held.push(held),
            Figures::Waiting(waiting) => self.waiting = Some(waiting),
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
        let waiting = Waiting { requests: 1.5, bytes: 2048.0, idle: None };
        let told = [
            Figures::Line(1, Some(41.75)),
            Figures::Line(10_000, None),
            Figures::Held(held.clone()),
            Figures::Waiting(waiting.clone()),
        ];
        let mut sheet = Sheet::of(Store::Redis);
        for it in &told {
            sheet.read(&it.line()).unwrap();
        }
        let lines = vec![(1, Some(41.75)), (10_000, None)];
        assert_eq!(sheet, Sheet { store: Store::Redis, lines, held: vec![held], waiting: Some(waiting) });
        assert!(sheet.read("held 1 2 3").is_err() && sheet.read("").is_err());
    }
}
