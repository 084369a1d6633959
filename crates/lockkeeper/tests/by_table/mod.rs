//! Counts by the table of meters alone, as adapters do, and compares that with what `Meters` counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use lockkeeper::Meters;
use lockkeeper::meters::{Kind, readings};
use lockkeeper::observe::{Event, Observer};

/// How often, by meter and by labels; of all lockers together.
pub(crate) type Totals = BTreeMap<(&'static str, BTreeSet<String>), i64>;

#[derive(Clone, Debug, Default)]
pub(crate) struct ByTable(Arc<Mutex<Totals>>);

impl Observer for ByTable {
    fn observe(&self, event: &Event<'_>) {
        readings(event, &mut |it| {
            let labels = it.labels().map(|(name, value)| format!("{name}={value}")).collect();
            let less = it.meter.kind == Kind::Gauge && it.value < 0.0;
            *self.0.lock().unwrap().entry((it.meter.name, labels)).or_default() += if less { -1 } else { 1 };
        });
    }
}

impl ByTable {
    /// All that was told, also what is zero by now.
    pub(crate) fn totals(&self) -> Totals {
        self.0.lock().unwrap().clone()
    }

    /// All that was told, and what `Meters` counted of the same lockers, without what is zero: the two must be equal.
    pub(crate) fn beside(&self, meters: &Meters) -> (Totals, Totals) {
        let mut counted = Totals::new();
        for it in &meters.snapshot().series {
            let own = it.labels.iter().filter(|it| !["store", "locker", "class"].contains(&it.0));
            let labels = own.map(|(name, value)| format!("{name}={value}")).collect();
            *counted.entry((it.meter.name, labels)).or_default() += i64::try_from(it.value.count()).unwrap();
        }
        counted.retain(|_, it| *it != 0);
        let mut told = self.totals();
        told.retain(|_, it| *it != 0);
        (told, counted)
    }
}
