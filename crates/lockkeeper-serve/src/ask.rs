//! What a client asks for: options from the query and from a JSON body, checked.

use std::time::Duration;

use axum::body::{Body, HttpBody, to_bytes};
use lockkeeper_core::{Clock, Load};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::answer::{Refusal, Result};
use crate::options::Limits;

/// The options of a lock, a token or a campaign.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Ask {
    pub(crate) name: Option<String>,
    pub(crate) wait: Option<Duration>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) shared: bool,
    pub(crate) permits: Option<Load>,
    pub(crate) also: Vec<String>,
    pub(crate) note: Option<String>,
    pub(crate) value: Option<String>,
}

const LOCK: &[&str] = &["wait", "ttl", "max_hold", "shared", "permits", "also", "note"];

/// What may be said of a lock.
pub(crate) const OF_LOCKS: &[&str] = LOCK;
/// What may be said when a lock is taken by token.
pub(crate) const OF_TOKENS: &[&str] =
    &["name", "wait", "ttl", "max_hold", "shared", "permits", "also", "note"];
/// What may be said of a campaign.
pub(crate) const OF_CAMPAIGNS: &[&str] = &["wait", "ttl", "note", "value"];

impl Ask {
    /// The options of a request, from both places where they may stand.
    pub(crate) async fn read(
        query: Option<&str>,
        body: Body,
        known: &'static [&'static str],
        limits: &Limits,
    ) -> Result<Self> {
        let mut ask = Ask::default();
        let mut seen: Vec<&'static str> = Vec::new();
        let mut set = |name: &str, value: String| -> Result<()> {
            let Some(known) = known.iter().copied().find(|it| *it == name) else {
                return Err(unknown(name, known));
            };
            if known != "also" && seen.contains(&known) {
                return Err(Refusal::invalid(format!("`{known}` is given more than once")));
            }
            seen.push(known);
            ask.set(known, value)
        };
        for (name, value) in pairs(query.unwrap_or_default())? {
            set(&name, value)?;
        }
        for (name, value) in in_body(body, limits).await? {
            set(&name, value)?;
        }
        if ask.shared && ask.permits.is_some() {
            return Err(Refusal::invalid("`shared` and `permits` exclude each other; say one of them"));
        }
        Ok(ask)
    }

    fn set(&mut self, name: &'static str, value: String) -> Result<()> {
        match name {
            "name" => self.name = Some(value),
            "wait" => self.wait = Some(wait(&value)?),
            "ttl" => self.ttl = Some(some_span(name, &value)?),
            "max_hold" => self.max_hold = Some(some_span(name, &value)?),
            "shared" => self.shared = flag(name, &value)?,
            "permits" => self.permits = Some(permits(&value)?),
            "also" => self.also.push(value),
            "note" => self.note = Some(value),
            _ => self.value = Some(value),
        }
        Ok(())
    }
}

fn unknown(name: &str, known: &[&str]) -> Refusal {
    let name: String = name.escape_debug().take(40).collect();
    Refusal::invalid(format!("the option `{name}` is unknown; known are {}", known.join(", ")))
}

/// The pairs of a query, decoded.
pub(crate) fn pairs(query: &str) -> Result<Vec<(String, String)>> {
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        let decoded = percent_decode_str(&text).decode_utf8().map(std::borrow::Cow::into_owned);
        decoded.map_err(|_| Refusal::invalid("the query is not UTF-8 after percent-decoding"))
    };
    let parts = query.split('&').filter(|it| !it.is_empty());
    parts
        .map(|it| {
            let (name, value) = it.split_once('=').unwrap_or((it, ""));
            Ok((decoded(name)?, decoded(value)?))
        })
        .collect()
}

/// The body is read to its end, also where it says nothing: only then is the end of the connection seen while we wait.
async fn in_body(body: Body, limits: &Limits) -> Result<Vec<(String, String)>> {
    if HttpBody::is_end_stream(&body) {
        return Ok(Vec::new());
    }
    let bytes = whole(body, limits).await?;
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|it| Refusal::invalid(format!("the body is not JSON: {it}; send none, or an object")))?;
    let Value::Object(fields) = value else {
        return Err(Refusal::invalid("the body is JSON but no object; send for example {\"ttl\":\"10s\"}"));
    };
    let mut pairs = Vec::new();
    for (name, value) in fields {
        match value {
            Value::Array(many) => {
                for it in many {
                    pairs.push((name.clone(), text_of(&name, it)?));
                }
            }
            one => pairs.push((name.clone(), text_of(&name, one)?)),
        }
    }
    Ok(pairs)
}

fn text_of(name: &str, value: Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(it) => Ok(it.to_string()),
        _ => Err(Refusal::invalid(format!(
            "`{}` must be text, true, false or a list of texts",
            name.escape_debug().take(40).collect::<String>()
        ))),
    }
}

/// A whole body, within the limits of size and time.
pub(crate) async fn whole(body: Body, limits: &Limits) -> Result<axum::body::Bytes> {
    let clock = Clock::boot();
    let until = clock.now().after(limits.patience);
    let read = clock.within(until, Box::pin(to_bytes(body, limits.body_bytes))).await;
    let status = axum::http::StatusCode::PAYLOAD_TOO_LARGE;
    match read {
        Some(Ok(bytes)) => Ok(bytes),
        Some(Err(_)) => Err(Refusal::new(
            status,
            "too_large",
            format!("the body is larger than {} bytes, or was cut off", limits.body_bytes),
        )),
        None => Err(Refusal::new(
            axum::http::StatusCode::REQUEST_TIMEOUT,
            "too_slow",
            format!("the body did not come within {:?}", limits.patience),
        )),
    }
}

fn flag(name: &str, text: &str) -> Result<bool> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Refusal::invalid(format!("`{name}` is `true` or `false`"))),
    }
}

fn span(name: &str, text: &str) -> Result<Duration> {
    humantime::parse_duration(text).map_err(|it| {
        Refusal::invalid(format!("`{name}` is no duration: {it}; write for example `{name}=10s` or `500ms`"))
    })
}

fn wait(text: &str) -> Result<Duration> {
    if text == "0" { Ok(Duration::ZERO) } else { span("wait", text) }
}

fn some_span(name: &str, text: &str) -> Result<Duration> {
    let span = span(name, text)?;
    if span.is_zero() {
        return Err(Refusal::invalid(format!("`{name}` must be greater than 0")));
    }
    Ok(span)
}

fn permits(text: &str) -> Result<Load> {
    let numbers = text.split_once('/').and_then(|(count, of)| Some((count.parse().ok()?, of.parse().ok()?)));
    let load = numbers.map(|(count, of)| Load::new(count, of)).filter(|it| it.can_fit());
    load.ok_or_else(|| {
        Refusal::invalid(
            "`permits` is how many of how many, for example `permits=2/5`: at least 1, at most all",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(query: &str, body: &'static str) -> Result<Ask> {
        Ask::read(Some(query), Body::from(body), OF_LOCKS, &Limits::default()).await
    }

    #[tokio::test]
    async fn options_stand_in_the_query_or_in_the_body() {
        let query = read("wait=3s&ttl=10s&also=b&also=c%2Fd&note=a+b&permits=2/5", "").await.unwrap();
        let body = r#"{"wait":"3s","ttl":"10s","also":["b","c/d"],"note":"a b","permits":"2/5"}"#;
        assert_eq!(query, read("", body).await.unwrap());
        assert_eq!(query.also, ["b", "c/d"]);
        assert_eq!(query.permits, Some(Load::new(2, 5)));
        assert_eq!(read("", "").await.unwrap(), Ask::default());
        assert_eq!(read("wait=0", "").await.unwrap().wait, Some(Duration::ZERO));
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_refused() {
        for (query, body) in [
            ("tll=3s", ""),
            ("ttl=0s", ""),
            ("ttl=-3s", ""),
            ("ttl=3", ""),
            ("ttl=1s&ttl=2s", ""),
            ("ttl=1s", r#"{"ttl":"2s"}"#),
            ("shared=maybe", ""),
            ("shared=true&permits=1/2", ""),
            ("permits=0/5", ""),
            ("permits=6/5", ""),
            ("permits=2", ""),
            ("note=%ff", ""),
            ("", "{"),
            ("", "[]"),
            ("", r#"{"ttl":{}}"#),
            ("", r#"{"ttl":10}"#),
        ] {
            assert!(read(query, body).await.is_err(), "{query} {body}");
        }
    }

    #[tokio::test]
    async fn a_body_has_a_limit() {
        let body = Body::from(vec![b' '; Limits::default().body_bytes + 1]);
        assert!(whole(body, &Limits::default()).await.is_err());
    }
}
