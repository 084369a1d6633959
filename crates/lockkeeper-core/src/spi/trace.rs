//! A trace context: the span of a distributed trace from which somebody asks for a lock, and its way through a store.

use std::fmt;

/// From which span a lock was asked for, so that whoever waits for it elsewhere can find that out.
///
/// It travels in the note of the claim, behind what the caller wrote there, as `traceparent=` and the text that W3C gave
/// that name. So every store keeps it as it is, and whoever knows nothing of it sees a longer note.
///
/// ```
/// use lockkeeper_core::observe::TraceContext;
///
/// let context = TraceContext::new([0x4b; 16], [0xf0; 8]);
/// let text = context.to_string();
/// assert_eq!(text, "00-4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b-f0f0f0f0f0f0f0f0-01");
/// assert_eq!(TraceContext::read(&text), Some(context));
/// assert_eq!(TraceContext::read("00-4b-f0-01"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span in it.
    pub span_id: [u8; 8],
}

/// What stands before it in a note.
const NAME: &str = "traceparent=";
/// Bytes of its text.
const TEXT_BYTES: usize = 2 + 1 + 32 + 1 + 16 + 1 + 2;

impl TraceContext {
    /// A span that is recorded, and its trace.
    pub const fn new(trace_id: [u8; 16], span_id: [u8; 8]) -> Self {
        TraceContext { trace_id, span_id }
    }

    /// Read what [`Display`](fmt::Display) writes. `None` for anything else, and for a span that nobody records.
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut next = |length: usize| {
            parts.next().filter(|it| it.len() == length && it.bytes().all(|it| it.is_ascii_hexdigit()))
        };
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        let trace_id = u128::from_str_radix(trace, 16).ok().filter(|it| *it != 0)?.to_be_bytes();
        let span_id = u64::from_str_radix(span, 16).ok().filter(|it| *it != 0)?.to_be_bytes();
        let known = version == "00" && flags == "01" && parts.next().is_none();
        known.then_some(TraceContext { trace_id, span_id })
    }

    /// The end of a note.
    pub(super) fn in_note(self) -> String {
        format!("{NAME}{self}")
    }

    /// What the caller wrote into a note, and the context behind it.
    pub(super) fn out_of(note: String) -> (Option<String>, Option<Self>) {
        let at = note.len().checked_sub(NAME.len() + TEXT_BYTES);
        let tail = at.and_then(|at| note.get(at..)?.strip_prefix(NAME));
        let (Some(at), Some(context)) = (at, tail.and_then(TraceContext::read)) else {
            return (Some(note), None);
        };
        match note[..at].strip_suffix(' ') {
            Some(written) => (Some(written.to_owned()), Some(context)),
            None if at == 0 => (None, Some(context)),
            None => (Some(note), None),
        }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace:032x}-{span:016x}-01")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recorded_spans_of_the_known_version_are_read() {
        let good = TraceContext::new([1; 16], [2; 8]).to_string();
        assert_eq!(good.len(), TEXT_BYTES);
        let zero =
            |from: usize, to: usize| format!("{}{}{}", &good[..from], "0".repeat(to - from), &good[to..]);
        let others = [good.replace("-01", "-00"), good.replacen("00-", "01-", 1), good.clone() + "-x"];
        for bad in
            others.into_iter().chain([zero(3, 35), zero(36, 52), good.replace("01", "+1"), "é".repeat(40)])
        {
            assert_eq!(TraceContext::read(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_note_that_only_looks_alike_stays_as_it_is() {
        let context = TraceContext::new([1; 16], [2; 8]);
        let tail = context.in_note();
        assert_eq!(TraceContext::out_of(tail.clone()), (None, Some(context)));
        assert_eq!(TraceContext::out_of(format!("é {tail}")), (Some("é".into()), Some(context)));
        for note in [String::new(), "é".repeat(67), format!("x{tail}"), format!("{tail} x"), NAME.to_owned()]
        {
            assert_eq!(TraceContext::out_of(note.clone()), (Some(note), None));
        }
    }
}
