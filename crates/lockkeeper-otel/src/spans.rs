//! Spans of those who wait and of those who hold, and the link from one to the other.
//!
//! A span of a wait is made when it is over: until then nobody knows whether it is worth one, and its beginning is known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use lockkeeper::meters::readings;
use lockkeeper::observe::{Event, TraceContext};
use lockkeeper::{Fence, Key};
use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::kit::locked;
use opentelemetry::trace::{
    Link, Span, SpanContext, SpanId, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue};

pub(crate) struct Spans<T: Tracer> {
    tracer: Arc<T>,
    attributes: Vec<KeyValue>,
    with_keys: bool,
    held: Mutex<Held<T::Span>>,
}

struct Held<S> {
    /// The span of each hold.
    now: HashMap<Key, Vec<(Fence, S)>>,
    /// The holder that handed a key on, until the next one has it.
    handed_on: HashMap<Key, SpanContext>,
    /// Where those come from who hold a key in other processes, while somebody here waits for it at the store.
    elsewhere: HashMap<Key, Vec<SpanContext>>,
    /// How many callers have asked for a key and have no answer yet.
    waiting: HashMap<Key, usize>,
}

/// Holders elsewhere of one key that are remembered: readers may be many.
const HOLDERS_MAX: usize = 8;
/// Keys of which holders elsewhere are remembered.
const KEYS_MAX: usize = 10_000;

impl<S> Default for Held<S> {
    fn default() -> Self {
        let (now, handed_on) = (HashMap::new(), HashMap::new());
        Held { now, handed_on, elsewhere: HashMap::new(), waiting: HashMap::new() }
    }
}

impl<S: Span> Held<S> {
    fn take(&mut self, key: &Key, fence: Fence) -> Option<S> {
        let spans = self.now.get_mut(key)?;
        let at = spans.iter().position(|it| it.0 == fence)?;
        let (_, span) = spans.swap_remove(at);
        if spans.is_empty() {
            self.now.remove(key);
        }
        Some(span)
    }

    /// Those whom a caller waits for, or waited for.
    fn in_the_way(&mut self, key: &Key) -> Vec<Link> {
        let before = self.handed_on.remove(key);
        let now = self.now.get(key).into_iter().flatten().map(|it| it.1.span_context().clone());
        let elsewhere = self.elsewhere.get(key).into_iter().flatten().cloned();
        before.into_iter().chain(now).chain(elsewhere).map(|it| Link::new(it, Vec::new(), 0)).collect()
    }

    fn arrived(&mut self, key: &Key) {
        match self.waiting.get_mut(key) {
            Some(count) => *count += 1,
            None => _ = self.waiting.insert(key.clone(), 1),
        }
    }

    /// A caller has its answer. Who holds elsewhere is in nobody's way when it was the last.
    fn answered(&mut self, key: &Key) {
        let Some(count) = self.waiting.get_mut(key) else { return };
        *count -= 1;
        if *count == 0 {
            self.waiting.remove(key);
            self.elsewhere.remove(key);
        }
    }

    /// Somebody holds it in another process. The store may tell that late, when nobody waits any more.
    fn behind(&mut self, key: &Key, holder: SpanContext) {
        if !self.waiting.contains_key(key) {
            return;
        }
        if self.elsewhere.len() < KEYS_MAX || self.elsewhere.contains_key(key) {
            let holders = self.elsewhere.entry(key.clone()).or_default();
            if holders.len() < HOLDERS_MAX && !holders.contains(&holder) {
                holders.push(holder);
            }
        }
    }
}

impl<T> Spans<T>
where
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync + 'static,
{
    pub(crate) fn new(tracer: Arc<T>, attributes: Vec<KeyValue>, with_keys: bool) -> Self {
        Spans { tracer, attributes, with_keys, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held<T::Span>> {
        locked(&self.held)
    }

    pub(crate) fn observe(&self, event: &Event<'_>) {
        if let Event::Arrived { key, .. } = event {
            self.held().arrived(key);
        }
        self.tell(event);
        if let Event::Granted { key, .. }
        | Event::TimedOut { key, .. }
        | Event::Busy { key, .. }
        | Event::Withdrawn { key, .. }
        | Event::Refused { key, .. }
        | Event::Failed { key, .. } = event
        {
            self.held().answered(key);
        }
    }

    fn tell(&self, event: &Event<'_>) {
        match event {
            Event::Granted { key, fence, begins, local, remote, .. } => {
                let waited = *local + *remote;
                let mut more = vec![KeyValue::new("lockkeeper.fence", fence.to_string())];
                for (name, wait) in [("lockkeeper.wait.local", local), ("lockkeeper.wait.remote", remote)] {
                    if !wait.is_zero() {
                        more.push(KeyValue::new(name, wait.as_secs_f64()));
                    }
                }
                // Whoever did not wait had nobody in the way; those who share are not in each other's.
                let before = self.held().in_the_way(key);
                self.held().elsewhere.remove(*key);
                let links = if waited.is_zero() { Vec::new() } else { before };
                self.acquired(event, waited, more, links);
                if *begins {
                    self.begin(key, *fence);
                }
            }
            Event::TimedOut { key, waited, ahead, .. } => {
                let ahead = ahead.and_then(|it| i64::try_from(it).ok());
                let more = ahead.map(|it| KeyValue::new("lockkeeper.ahead", it)).into_iter().collect();
                let links = self.held().in_the_way(key);
                self.acquired(event, *waited, more, links);
            }
            Event::Busy { key, waited, .. } | Event::Withdrawn { key, waited, .. } => {
                let links = self.held().in_the_way(key);
                self.acquired(event, *waited, Vec::new(), links);
            }
            Event::Refused { .. } => self.acquired(event, Duration::ZERO, Vec::new(), Vec::new()),
            Event::Failed { error, waited, .. } => {
                let more = vec![KeyValue::new("lockkeeper.error", error.to_string())];
                self.acquired(event, *waited, more, Vec::new());
            }
            Event::Released { key, fence, handed_on, .. } => self.end(key, *fence, *handed_on),
            Event::Lost { key, fence, reason, .. } => self.lost(key, *fence, reason.to_string()),
            Event::Renewed { key, fence, left, .. } => {
                let left = KeyValue::new("lockkeeper.renewal.left", left.as_secs_f64());
                self.happened(key, Some(*fence), "renewed", &[left]);
            }
            Event::Faulted { key, fault, .. } => {
                let fault = KeyValue::new("lockkeeper.fault", fault.to_string());
                self.happened(key, None, "faulted", &[fault]);
            }
            Event::Behind { key, holder, .. } => self.held().behind(key, remote(holder)),
            Event::Left { key, .. } | Event::Abandoned { key, .. } => {
                let mut held = self.held();
                held.handed_on.remove(*key);
                held.elsewhere.remove(*key);
            }
            _ => {}
        }
    }

    fn about(&self, key: &Key) -> Vec<KeyValue> {
        let key = self.with_keys.then(|| KeyValue::new("lockkeeper.key", key.to_string()));
        self.attributes.iter().cloned().chain(key).collect()
    }

    /// The span of a caller that has its answer.
    fn acquired(&self, event: &Event<'_>, waited: Duration, more: Vec<KeyValue>, links: Vec<Link>) {
        let now = now();
        let mut attributes = self.about(event.key());
        // The words of the table: what metrics call an outcome, spans call it, too.
        readings(event, &mut |it| {
            let own = it.labels().filter(|it| it.0 == "outcome" || it.0 == "by");
            attributes.extend(own.map(|(name, value)| KeyValue::new(format!("lockkeeper.{name}"), value)));
        });
        attributes.extend(more);
        let builder = self.tracer.span_builder("acquire lock").with_start_time(now - waited);
        let builder = builder.with_attributes(attributes).with_links(links);
        let mut span = self.tracer.build_with_context(builder, &Context::current());
        if let Event::Failed { error, .. } = event {
            span.set_status(Status::error(error.to_string()));
        }
        span.end_with_timestamp(now);
    }

    /// A hold begins.
    fn begin(&self, key: &Key, fence: Fence) {
        let mut attributes = self.about(key);
        attributes.push(KeyValue::new("lockkeeper.fence", fence.to_string()));
        let builder =
            self.tracer.span_builder("hold lock").with_start_time(now()).with_attributes(attributes);
        let span = self.tracer.build_with_context(builder, &Context::current());
        if span.is_recording() {
            self.held().now.entry(key.clone()).or_default().push((fence, span));
        }
    }

    fn end(&self, key: &Key, fence: Fence, handed_on: bool) {
        let mut held = self.held();
        let span = held.take(key, fence);
        // What was left here, nobody has taken: it went to a caller whose spans are not wanted.
        held.handed_on.remove(key);
        let Some(mut span) = span else { return };
        let now = now();
        // The next one may have it already: then it found us among those who hold.
        if handed_on && !held.now.contains_key(key) {
            held.handed_on.insert(key.clone(), span.span_context().clone());
        }
        drop(held);
        // What ends a span may send it somewhere: not under our lock.
        span.end_with_timestamp(now);
    }

    fn lost(&self, key: &Key, fence: Fence, reason: String) {
        let Some(mut span) = self.held().take(key, fence) else { return };
        span.add_event_with_timestamp(
            "lost",
            now(),
            vec![KeyValue::new("lockkeeper.reason", reason.clone())],
        );
        span.set_status(Status::error(reason));
        span.end_with_timestamp(now());
    }

    /// Something happened to a hold, or to all of a key.
    fn happened(&self, key: &Key, fence: Option<Fence>, name: &'static str, attributes: &[KeyValue]) {
        let (mut held, now) = (self.held(), now());
        for (of, span) in held.now.get_mut(key).into_iter().flatten() {
            if fence.is_none_or(|it| it == *of) {
                span.add_event_with_timestamp(name, now, attributes.to_vec());
            }
        }
    }
}

/// The span from which the present caller asks, if it is recorded.
pub(crate) fn asked_from() -> Option<TraceContext> {
    let context = Context::current();
    let span = context.span().span_context().clone();
    let recorded = span.is_valid() && span.is_sampled();
    recorded.then(|| TraceContext::new(span.trace_id().to_bytes(), span.span_id().to_bytes()))
}

/// A span of another process.
fn remote(context: &TraceContext) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(context.trace_id), SpanId::from_bytes(context.span_id));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default())
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + time_of_day()
}

#[cfg(test)]
mod tests {
    use lockkeeper::spi::Memory;
    use lockkeeper::{Locker, observe::Observer};
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

    use super::*;

    #[derive(Clone)]
    struct Shared(Arc<Spans<SdkTracer>>);

    impl std::fmt::Debug for Shared {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Shared")
        }
    }

    impl Observer for Shared {
        fn observe(&self, event: &Event<'_>) {
            self.0.observe(event);
        }
    }

    #[tokio::test]
    async fn nothing_is_remembered_of_locks_that_are_free_again() {
        let tracer = SdkTracerProvider::builder().build().tracer("test");
        let spans = Shared(Arc::new(Spans::new(Arc::new(tracer), Vec::new(), true)));
        let locker = Locker::builder(Memory::default()).observer(spans.clone()).build();
        for turn in 0..100 {
            let key = format!("k{turn}");
            let guard = locker.lock(&key).await.unwrap();
            let waits = tokio::spawn(locker.lock(&key));
            tokio::task::yield_now().await;
            assert_eq!(spans.0.held().now.len(), 1);
            drop(guard); // handed on
            if turn % 2 == 0 {
                waits.abort(); // to nobody
            }
            drop(waits.await);
        }
        assert!(spans.0.held().now.is_empty());
        assert!(spans.0.held().handed_on.is_empty());
        assert!(spans.0.held().waiting.is_empty());
    }

    #[test]
    fn holders_elsewhere_are_bounded_and_forgotten() {
        let mut held = Held::<opentelemetry::global::BoxedSpan>::default();
        let span = |number: u64| remote(&TraceContext::new([1; 16], number.to_be_bytes()));
        let key = Key::new("read").unwrap();
        held.arrived(&key);
        for number in [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10] {
            held.behind(&key, span(number));
        }
        assert_eq!(held.in_the_way(&key).len(), HOLDERS_MAX);
        for number in 0..=KEYS_MAX {
            let key = Key::new(&format!("k{number}")).unwrap();
            held.arrived(&key);
            held.behind(&key, span(1));
        }
        assert_eq!(held.elsewhere.len(), KEYS_MAX);
        held.answered(&key);
        assert_eq!(held.in_the_way(&key).len(), 0, "nobody waits for those any more");
        held.behind(&key, span(1));
        assert_eq!(held.in_the_way(&key).len(), 0, "it was told too late");
    }
}
