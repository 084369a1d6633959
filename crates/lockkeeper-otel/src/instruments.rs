//! The meters of the table as instruments of OpenTelemetry.

use std::sync::Arc;

use lockkeeper::meters::{Kind, METERS, Reading, bounds, counters_at_zero, readings};
use lockkeeper::observe::Event;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, UpDownCounter};

/// All of them, in the order of the table.
pub(crate) struct Instruments(Vec<Instrument>);

enum Instrument {
    Counter(Counter<u64>),
    UpDown(UpDownCounter<i64>),
    Histogram(Histogram<f64>),
}

/// One with the buckets of the table.
pub(crate) fn histogram(meter: &Meter, row: &lockkeeper::meters::Meter) -> Histogram<f64> {
    let unit = if row.unit == "s" { "s" } else { "1" };
    let histogram = meter.f64_histogram(row.name).with_description(row.help).with_unit(unit);
    histogram.with_boundaries(bounds(row).to_vec()).build()
}

impl Instruments {
    pub(crate) fn of(meter: &Meter) -> Self {
        let make = |it: &lockkeeper::meters::Meter| match it.kind {
            Kind::Counter => {
                Instrument::Counter(meter.u64_counter(it.name).with_description(it.help).build())
            }
            Kind::Gauge => {
                Instrument::UpDown(meter.i64_up_down_counter(it.name).with_description(it.help).build())
            }
            _ => Instrument::Histogram(histogram(meter, it)),
        };
        Instruments(METERS.iter().map(make).collect())
    }

    /// The counters of a locker are there from the start.
    pub(crate) fn begin(&self, labels: &[KeyValue]) {
        for it in counters_at_zero() {
            self.add(&it, labels, None);
        }
    }

    /// An event of a key of this class, if they are told apart.
    pub(crate) fn observe(&self, event: &Event<'_>, labels: &[KeyValue], class: Option<&Arc<str>>) {
        readings(event, &mut |reading| self.add(&reading, labels, class));
    }

    fn add(&self, reading: &Reading, labels: &[KeyValue], class: Option<&Arc<str>>) {
        let Some(at) = METERS.iter().position(|it| it.name == reading.meter.name) else { return };
        let own = reading.labels().map(|(name, value)| KeyValue::new(name, value));
        let class = class.filter(|_| reading.meter.has_class).map(|it| KeyValue::new("class", it.clone()));
        let labels: Vec<KeyValue> = labels.iter().cloned().chain(own).chain(class).collect();
        match &self.0[at] {
            // A counter counts one at a time, or it only begins.
            Instrument::Counter(it) => it.add(u64::from(0.0 < reading.value), &labels),
            Instrument::UpDown(it) => it.add(if reading.value < 0.0 { -1 } else { 1 }, &labels),
            Instrument::Histogram(it) => it.record(reading.value, &labels),
        }
    }
}
