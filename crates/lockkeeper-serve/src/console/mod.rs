//! The console: pages that are readable without a script, kept live by a small one.

mod breaking;
mod doubts;
mod events;
mod figures;
mod hot;
mod login;
mod pages;
mod parts;
mod rooms;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};

pub(crate) use breaking::break_holder;
pub(crate) use doubts::doubts;
pub(crate) use events::events;
pub(crate) use hot::hot;
pub(crate) use login::{enter, is_session, login_page};
pub(crate) use pages::{doctor, lock, locks, overview};
pub(crate) use rooms::rooms;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("console.js");

/// The style and the script.
pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    match name.as_str() {
        "style.css" => ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], STYLE).into_response(),
        "console.js" => ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], SCRIPT).into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}
