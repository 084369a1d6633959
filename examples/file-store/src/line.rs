//! The line of one lock, as it lies in its file: who holds, who waits, and the last counter.

use std::fmt::Write as _;

use lockkeeper_core::{ClaimId, Label, Moment};

/// Somebody who holds or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: ClaimId,
    /// 0 while it waits.
    pub(crate) counter: u64,
    pub(crate) expires: Moment,
    pub(crate) host: String,
    pub(crate) pid: u32,
}

impl Entry {
    pub(crate) fn label(&self) -> Label {
        Label::new(self.host.clone(), self.pid, None, None)
    }
}

/// All of them in order; whoever holds stands first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) counter: u64,
    pub(crate) entries: Vec<Entry>,
}

impl Line {
    /// Read a file. `None` if it is not one of ours.
    pub(crate) fn read(text: &str) -> Option<Line> {
        let mut lines = text.lines();
        let Some(first) = lines.next() else { return Some(Line::default()) };
        let counter = first.strip_prefix("lockkeeper files 1, counter ")?.parse().ok()?;
        let entry = |line: &str| {
            let mut words = line.splitn(5, ' ');
            Some(Entry {
                id: ClaimId::from_hex(words.next()?)?,
                counter: words.next()?.parse().ok()?,
                expires: Moment::from_nanos(words.next()?.parse().ok()?),
                pid: words.next()?.parse().ok()?,
                host: words.next()?.to_owned(),
            })
        };
        Some(Line { counter, entries: lines.map(entry).collect::<Option<_>>()? })
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("lockkeeper files 1, counter {}\n", self.counter);
        for it in &self.entries {
            let (id, expires) = (it.id.to_hex(), it.expires.as_nanos());
            let host = it.host.replace(char::is_control, " ");
            let _ = writeln!(text, "{id} {} {expires} {} {host}", it.counter, it.pid);
        }
        text
    }

    /// Forget whoever was not heard of for its ttl.
    pub(crate) fn forget_expired(&mut self, now: Moment) {
        self.entries.retain(|it| now < it.expires);
    }

    pub(crate) fn position(&self, id: ClaimId) -> Option<usize> {
        self.entries.iter().position(|it| it.id == id)
    }

    /// Whether somebody stands behind the holder.
    pub(crate) fn is_wanted(&self) -> bool {
        1 < self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_survives_the_trip_through_its_file() {
        let entry = |byte, counter| Entry {
            id: ClaimId::from_bytes([byte; 16]),
            counter,
            expires: Moment::from_nanos(7),
            host: "a host\n".to_owned(),
            pid: 3,
        };
        let line = Line { counter: 9, entries: vec![entry(1, 9), entry(2, 0)] };
        let read = Line::read(&line.text()).unwrap();
        assert_eq!((read.counter, read.entries.len(), read.entries[1].counter), (9, 2, 0));
        assert_eq!(Line::read(""), Some(Line::default()));
        for foreign in ["x", "lockkeeper files 1, counter x", "lockkeeper files 1, counter 1\nzz 0 0 0 h"] {
            assert_eq!(Line::read(foreign), None, "{foreign}");
        }
    }
}
