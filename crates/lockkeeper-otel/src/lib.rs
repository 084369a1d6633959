//! What Lockkeeper does, told to OpenTelemetry: metrics, and spans of those who wait and those who hold.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! // Install your providers first.
//! let store = lockkeeper::open("memory:").await?;
//! let locker = store.locker.observer(lockkeeper_otel::ToOtel::global()).build();
//! locker.lock("orders/42").await?.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!  request 1  ──┬─ acquire lock ─┐
//!               └─ hold lock ────┼──────────────┐
//!                                               ▲ link
//!  request 2  ──┬─ acquire lock ────────────────┼─┐
//!               └─ hold lock ─────────────────────┼───────
//! ```
//!
//! - `acquire lock`, a child of the caller's span, from its request to the answer: `lockkeeper.outcome`, the waits in both
//!   lines, the fence. **If somebody was in the way, it links to that holder**: to the `hold lock` of a caller of the same
//!   process; to the span from which it asked, the parent of its `hold lock`, if the holder is in another process.
//! - `hold lock`, a child of the same span, from the grant to the end, with events `renewed`, `faulted`, `lost`.
//!
//! Across processes the span travels in the note of the lock, behind what was written there, if it is sampled; whoever waits
//! at the store looks once who holds. Both are left out where the caller has no sampled span. A lock that was handed on
//! inside its process is still known by the caller that got it from the store. Who only tries is not linked to holders in
//! other processes, and Redlock and session locks of MariaDB and MySQL link nobody across processes.
//!
//! The caller's span is the one in OpenTelemetry's current context when the request is polled. Metrics are those of
//! [`METERS`](lockkeeper::meters::METERS), without keys; spans have the key as `lockkeeper.key` unless
//! [`without_keys`](ToOtel::without_keys) is said. With the feature `twophase` also the numbers of two-phase commit are told:
//! `ToOtel::two_phase` and `ToOtel::in_doubt`.
//!
//! [`ToOtel::with`] takes a meter and a tracer of yours, so `opentelemetry` is part of this interface and re-exported. When it
//! makes a breaking release, the next minor release of this crate (0.x) follows, never a patch.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod instruments;
mod spans;
#[cfg(feature = "twophase")]
mod two_phase;

use std::fmt;
use std::sync::Arc;

use lockkeeper::Key;
use lockkeeper::meters::{Classes, ClassesOfLocker};
use lockkeeper::observe::{Event, Observer, Source, TraceContext};
use opentelemetry::KeyValue;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::metrics::Meter;
use opentelemetry::trace::Tracer;

pub use opentelemetry;

use instruments::Instruments;
use spans::Spans;

/// An observer that makes metrics and spans. One can observe all lockers of a process. Its clones share everything.
pub struct ToOtel<T: Tracer = BoxedTracer> {
    tracer: Arc<T>,
    instruments: Arc<Instruments>,
    #[cfg(feature = "twophase")]
    two_phase: Arc<two_phase::TwoPhase>,
    with_keys: bool,
    classes: Option<Classes>,
}

impl<T: Tracer> Clone for ToOtel<T> {
    fn clone(&self) -> Self {
        ToOtel {
            tracer: self.tracer.clone(),
            instruments: self.instruments.clone(),
            #[cfg(feature = "twophase")]
            two_phase: self.two_phase.clone(),
            with_keys: self.with_keys,
            classes: self.classes.clone(),
        }
    }
}

impl<T: Tracer> fmt::Debug for ToOtel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToOtel").field("with_keys", &self.with_keys).finish_non_exhaustive()
    }
}

impl ToOtel<BoxedTracer> {
    /// For the providers that are installed for the whole process.
    pub fn global() -> Self {
        ToOtel::with(&global::meter("lockkeeper"), global::tracer("lockkeeper"))
    }
}

impl<T> ToOtel<T>
where
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync + 'static,
{
    /// For providers of your own.
    ///
    /// ```
    /// use lockkeeper_otel::ToOtel;
    /// use opentelemetry::global;
    ///
    /// let observer = ToOtel::with(&global::meter("locks"), global::tracer("locks")).without_keys();
    /// # let _ = observer;
    /// ```
    pub fn with(meter: &Meter, tracer: T) -> Self {
        ToOtel {
            tracer: Arc::new(tracer),
            instruments: Arc::new(Instruments::of(meter)),
            #[cfg(feature = "twophase")]
            two_phase: Arc::new(two_phase::TwoPhase::of(meter)),
            with_keys: true,
            classes: None,
        }
    }

    /// Leave the names of locks out of spans, for names that nobody may read.
    #[must_use]
    pub fn without_keys(mut self) -> Self {
        self.with_keys = false;
        self
    }

    /// Tell keys apart in metrics by a class, in the attribute `class`: a part of the key, or a word for it. An empty one is
    /// `other`, and so is each after the first [`CLASSES_MAX`](lockkeeper::meters::CLASSES_MAX) of a locker.
    ///
    /// ```
    /// use lockkeeper_otel::ToOtel;
    ///
    /// let mail = ToOtel::global().by_class(|key| if key.as_str().starts_with("mail") { "mail" } else { "" });
    /// let tables = ToOtel::global().by_prefix('/');
    /// # let _ = (mail, tables);
    /// ```
    #[must_use]
    pub fn by_class(mut self, classify: impl for<'a> Fn(&'a Key) -> &'a str + Send + Sync + 'static) -> Self {
        self.classes = Some(Classes::by_class(classify));
        self
    }

    /// The same by what stands before the first `end`: `orders/42` is of the class `orders`. Keys without it are `other`.
    #[must_use]
    pub fn by_prefix(mut self, end: char) -> Self {
        self.classes = Some(Classes::by_prefix(end));
        self
    }

    fn of(&self, source: &Source<'_>) -> OfLocker<T> {
        let about = [("store", source.store), ("locker", source.locker)];
        let given = || about.into_iter().filter(|it| !it.1.is_empty());
        let labels = given().map(|(name, value)| KeyValue::new(name, value.to_owned())).collect();
        let attributes = given()
            .map(|(name, value)| KeyValue::new(format!("lockkeeper.{name}"), value.to_owned()))
            .collect();
        OfLocker {
            labels,
            classes: self.classes.as_ref().map(Classes::of_locker),
            instruments: self.instruments.clone(),
            spans: Spans::new(self.tracer.clone(), attributes, self.with_keys),
        }
    }
}

impl<T> Observer for ToOtel<T>
where
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync + 'static,
{
    /// For events of no locker, which only a test has.
    fn observe(&self, event: &Event<'_>) {
        self.of(&Source::new("", "")).observe(event);
    }

    fn for_locker(&self, source: &Source<'_>) -> Option<Arc<dyn Observer>> {
        let of_locker = self.of(source);
        of_locker.instruments.begin(&of_locker.labels);
        Some(Arc::new(of_locker))
    }
}

/// The observer of one locker.
struct OfLocker<T: Tracer> {
    labels: Vec<KeyValue>,
    classes: Option<ClassesOfLocker>,
    instruments: Arc<Instruments>,
    spans: Spans<T>,
}

impl<T: Tracer> fmt::Debug for OfLocker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfLocker").field("labels", &self.labels).finish_non_exhaustive()
    }
}

impl<T> Observer for OfLocker<T>
where
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync + 'static,
{
    fn observe(&self, event: &Event<'_>) {
        let class = self.classes.as_ref().map(|it| it.label(event.key()));
        self.instruments.observe(event, &self.labels, class.as_ref());
        self.spans.observe(event);
    }

    fn trace(&self, _: &Key) -> Option<TraceContext> {
        spans::asked_from()
    }
}
