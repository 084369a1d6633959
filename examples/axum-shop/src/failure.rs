//! Why a request was not served, and the answer to it.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lockkeeper::Error;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Lock(#[from] Error),
    #[error("the books cannot be written: {0}")]
    Books(#[from] sqlx::Error),
    #[error("another holder was here since; nothing was changed")]
    Stale,
    #[error("sold out")]
    SoldOut,
    #[error("there is no such product")]
    NoSuchProduct,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = match &self {
            Failure::Lock(Error::TimedOut { .. } | Error::Full { .. } | Error::Closed) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Failure::Lock(Error::Lost { .. }) | Failure::Stale => StatusCode::CONFLICT,
            Failure::Lock(error) if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            Failure::SoldOut => StatusCode::GONE,
            Failure::NoSuchProduct => StatusCode::NOT_FOUND,
            Failure::Lock(_) | Failure::Books(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, format!("{self}\n")).into_response()
    }
}
