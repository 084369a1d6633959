//! Locks over HTTP for every language, and a console to see them.
//!
//! [`Serve`] makes an axum router over a [`Locker`](lockkeeper_core::Locker) and the operator's view of its store, and serves
//! it on a loopback address or a unix socket. It only reads unless it is told otherwise.
//!
//! ```no_run
//! # async fn main_() -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper_core::{Locker, Memory};
//! use lockkeeper_serve::{Listen, Serve};
//!
//! let store = Memory::default();
//! let serve = Serve::new(Locker::new(store.clone()), store, "a-long-secret")?.allow_locks();
//! let listener = Listen::parse("127.0.0.1:7765")?.bind().await?;
//! serve.run(listener, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!  options ─▶ listen (connections, limits, shutdown) ─▶ front ─▶ gate (Host, token, Origin, headers) ─▶ routes
//!                                                         routes: locks (streams), tokens, leaders, look (reads)
//!                                                         console (pages over watch: one look per interval)
//!                                                         and under them: ask (options), held (guards), answer (errors)
//! ```
//!
//! The HTTP API is told in `docs/guides/serve.md` and, for programs, by `GET /openapi.json`.
//!
//! [`Serve::router`] gives a router to mount in a server of yours, so `axum` is part of this interface and re-exported. When it
//! makes a breaking release, the next minor release of this crate (0.x) follows, never a patch.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod alarm;
mod answer;
mod ask;
mod console;
mod doubt;
#[cfg(test)]
mod flickering;
mod front;
mod gate;
mod held;
mod hot;
mod leaders;
mod listen;
mod locks;
mod look;
mod options;
mod peer;
mod secret;
mod state;
mod tokens;
mod view;
mod watch;

pub use axum;
pub use doubt::{InDoubt, InDoubts};
pub use hot::HotNames;
pub use listen::{Listen, Listener, worker_threads};
pub use options::{Limits, Serve};
pub use secret::random_token;
