//! Spans of time on the command line.

use std::time::Duration;

/// A span greater than 0.
pub(crate) fn some_span(text: &str) -> std::result::Result<Duration, String> {
    let span = any_span(text).map_err(|it| it.text)?;
    if span.is_zero() {
        return Err("it must be greater than 0".into());
    }
    Ok(span)
}

/// A span to wait: one too long to be counted is for ever.
pub(crate) fn wait_span(text: &str) -> std::result::Result<Duration, String> {
    any_span(text).or_else(|it| if it.too_long { Ok(Duration::MAX) } else { Err(it.text) })
}

struct NoSpan {
    text: String,
    too_long: bool,
}

fn any_span(text: &str) -> std::result::Result<Duration, NoSpan> {
    if text.trim_start().starts_with('-') {
        let text = "a duration cannot be negative; write for example `10s` or `1m 30s`".into();
        return Err(NoSpan { text, too_long: false });
    }
    humantime::parse_duration(text).map_err(|error| NoSpan {
        text: format!("{error}; write for example `10s` or `1m 30s`"),
        too_long: error == humantime::DurationError::NumberOverflow && !text.contains('.'),
    })
}

/// Seconds as `flock` has them: a number without a unit.
pub(super) fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds: Option<f64> = text.trim().parse().ok().filter(|it: &f64| 0.0 <= *it);
    let seconds = seconds.ok_or("write seconds, for example `5` or `0.5`; or use --wait with a unit")?;
    // One too long to be counted is for ever.
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}
