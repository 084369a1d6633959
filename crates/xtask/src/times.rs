//! How long tests take, by what their programs print and the clock.
//!
//! The stable test runner prints no times. It starts tests in the order of their names, a fixed number at once, and
//! prints a line when one ends: so each began when the one ended that made room for it.

use std::time::{Duration, Instant};

const SHOWN: usize = 10;

#[expect(clippy::disallowed_methods, reason = "a span of a test is shown, nothing is decided by it")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The test of which a line says that it ended.
pub(crate) fn ended_in(line: &str) -> Option<&str> {
    let (name, result) = line.trim_end().strip_prefix("test ")?.rsplit_once(" ... ")?;
    let known = result == "ok" || result == "FAILED" || result.starts_with("ignored");
    // `#[should_panic]` is noted behind the name.
    known.then(|| name.split(" - ").next().unwrap_or(name))
}

/// How long each test took, from the moments in which they ended.
pub(crate) fn spans(ended: &[(String, Duration)], threads: usize) -> Vec<(String, Duration)> {
    let mut names: Vec<&str> = ended.iter().map(|it| it.0.as_str()).collect();
    names.sort_unstable();
    let began = |name: &str| {
        let place = names.iter().position(|it| *it == name).unwrap_or(0);
        place.checked_sub(threads).map_or(Duration::ZERO, |it| ended[it].1)
    };
    ended.iter().map(|(name, end)| (name.clone(), end.saturating_sub(began(name)))).collect()
}

/// What took how long.
#[derive(Default)]
pub(crate) struct Times {
    programs: Vec<(Duration, String)>,
    tests: Vec<(Duration, String)>,
}

impl Times {
    /// A program, and the tests in it.
    pub(crate) fn add(&mut self, program: &str, total: Duration, tests: &[(String, Duration)]) {
        self.programs.push((total, program.to_owned()));
        self.tests.extend(tests.iter().map(|(test, span)| (*span, format!("{program}::{test}"))));
    }

    /// The slowest, for people.
    pub(crate) fn report(&self) -> String {
        let mut lines = vec![format!("\nthe {SHOWN} slowest tests, while others ran beside them:")];
        lines.extend(slowest(&self.tests));
        lines.push(format!("the {SHOWN} slowest test programs:"));
        lines.extend(slowest(&self.programs));
        lines.join("\n")
    }
}

fn slowest(rows: &[(Duration, String)]) -> impl Iterator<Item = String> {
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    rows.into_iter().take(SHOWN).map(|(span, name)| format!("{:>7.1} s  {name}", span.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_tell_of_an_end_are_known() {
        assert_eq!(ended_in("test a::b ... ok\n"), Some("a::b"));
        assert_eq!(ended_in("test a::b ... FAILED\n"), Some("a::b"));
        assert_eq!(ended_in("test a::b - should panic ... ok\n"), Some("a::b"));
        assert_eq!(ended_in("test a::b has been running for over 60 seconds\n"), None);
        assert_eq!(ended_in("test result: ok. 3 passed; 0 failed\n"), None);
    }

    #[test]
    fn a_test_began_when_another_made_room_for_it() {
        let ended = [("a", 5), ("c", 6), ("b", 7), ("e", 8), ("d", 20)];
        let ended = ended.map(|(name, at)| (name.to_owned(), Duration::from_secs(at)));
        let took = |threads| -> Vec<(String, u64)> {
            spans(&ended, threads).into_iter().map(|(name, span)| (name, span.as_secs())).collect()
        };
        let named = |all: [(&str, u64); 5]| all.map(|(name, span)| (name.to_owned(), span)).to_vec();
        // Two at once: a and b begin; c when a ends at 5, d when c ends at 6, e when b ends at 7.
        assert_eq!(took(2), named([("a", 5), ("c", 1), ("b", 7), ("e", 1), ("d", 14)]));
        // All at once.
        assert_eq!(took(9), named([("a", 5), ("c", 6), ("b", 7), ("e", 8), ("d", 20)]));
    }

    #[test]
    fn the_slowest_come_first_and_programs_apart() {
        let mut times = Times::default();
        let spans =
            [("quick", 900), ("slow", 61_500)].map(|it| (it.0.to_owned(), Duration::from_millis(it.1)));
        times.add("kit: sim", Duration::from_secs(70), &spans);
        let text = times.report();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|it| it.contains("kit")).collect();
        assert_eq!(lines, ["61.5 s  kit: sim::slow", "0.9 s  kit: sim::quick", "70.0 s  kit: sim"]);
    }
}
