//! Answers in JSON: values, and what went wrong with the status that fits.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lockkeeper_core::{Error, backend::Fault};
use serde::Serialize;

/// Something went wrong: the status, a word for programs and a sentence for people.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    error: &'static str,
    message: String,
}

pub(crate) type Result<T = Response> = std::result::Result<T, Refusal>;

#[derive(Serialize)]
struct Body<'a> {
    error: &'a str,
    message: &'a str,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, error: &'static str, message: impl Into<String>) -> Self {
        Refusal { status, error, message: message.into() }
    }

    /// Something that the client must change.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    /// The server does as much as it may.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
    }

    /// The server ends before it has what is waited for.
    pub(crate) fn closing() -> Self {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "closing", "the server is being shut down")
    }

    /// The lock was not to be had in time.
    pub(crate) fn taken() -> Self {
        Refusal::new(
            StatusCode::CONFLICT,
            "not_obtained",
            "somebody else holds the lock or waits for it; try later, or wait with `wait=`",
        )
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, word) = match &error {
            Error::TimedOut { .. } => (StatusCode::CONFLICT, "not_obtained"),
            Error::Lost { .. } => (StatusCode::CONFLICT, "lost"),
            Error::Full { .. } => (StatusCode::TOO_MANY_REQUESTS, "queue_full"),
            Error::Invalid { .. } => (StatusCode::BAD_REQUEST, "invalid"),
            Error::Unsupported { .. } => (StatusCode::BAD_REQUEST, "unsupported"),
            Error::Closed => (StatusCode::SERVICE_UNAVAILABLE, "closing"),
            Error::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        Refusal::new(status, word, error.to_string())
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Error::from(fault).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut answer = json(self.status, &Body { error: self.error, message: &self.message });
        let headers = answer.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        answer
    }
}

/// One value as a line of JSON.
pub(crate) fn line(value: &impl Serialize) -> String {
    // Only maps with keys that are no text cannot be written, and we have none.
    let mut text = serde_json::to_string(value).unwrap_or_default();
    text.push('\n');
    text
}

/// A value with a status.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], line(value)).into_response()
}

/// A value that is there.
pub(crate) fn ok(value: &impl Serialize) -> Response {
    json(StatusCode::OK, value)
}
