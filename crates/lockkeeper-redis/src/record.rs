//! What the scripts store about a claim, read and written on our side. The layout is told in `scripts/room.lua`.

use std::time::Duration;

use lockkeeper_core::claim::Label;
use lockkeeper_core::inspect::Occupant;
use lockkeeper_core::{Claim, Fence, Key, Load};

/// Microseconds in a tick.
const TICK_MICROS: u64 = 10;

/// A whole number that a script packed as a double.
pub(crate) fn whole(bytes: [u8; 8]) -> u64 {
    let value = f64::from_be_bytes(bytes);
    // Counters and ticks stay far below 2^53, where doubles are exact; anything else is not from us.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`as` saturates, which is what a foreign value deserves"
    )]
    let whole = value as u64;
    whole
}

/// A span of ticks.
pub(crate) fn ticks(count: u64) -> Duration {
    Duration::from_micros(count.saturating_mul(TICK_MICROS))
}

/// Where the name of the desk stands in what [`claim`] makes.
const PROCESS: std::ops::Range<usize> = 16..32;

/// Where weight and capacity stand there.
const LOAD: std::ops::Range<usize> = 32..40;

/// Where the number of the ask stands there.
const ASK: std::ops::Range<usize> = 48..56;

/// The record of a claim from its byte 19 on: id, process, weight, capacity, ttl, ask, name and label.
pub(crate) fn claim(claim: &Claim, ttl_ms: u64) -> Vec<u8> {
    let (name, label) = (claim.key.as_str(), &claim.label);
    let mut record = Vec::with_capacity(80 + name.len() + label.host.len());
    record.extend(claim.id.as_bytes());
    record.extend([b'0'; PROCESS.end - PROCESS.start]);
    record.extend(load(claim.load));
    record.extend(double(ttl_ms));
    record.extend(double(0));
    put(&mut record, Some(name));
    put(&mut record, Some(&label.host));
    record.extend(label.pid.to_be_bytes());
    put(&mut record, label.owner.as_deref());
    put(&mut record, label.note.as_deref());
    record
}

pub(crate) fn set_id(record: &mut [u8], id: &[u8; 16]) {
    record[..16].copy_from_slice(id);
}

/// Where messages about the claim go.
pub(crate) fn set_process(record: &mut [u8], process: &str) {
    record[PROCESS].copy_from_slice(process.as_bytes());
}

pub(crate) fn set_ask(record: &mut [u8], ask: u64) {
    record[ASK].copy_from_slice(&double(ask));
}

/// Weight and capacity as scripts unpack them.
pub(crate) fn load(load: Load) -> [u8; 8] {
    let packed = u64::from(load.weight) << 32 | u64::from(load.capacity);
    packed.to_be_bytes()
}

pub(crate) fn set_load(record: &mut [u8], of: Load) {
    record[LOAD].copy_from_slice(&load(of));
}

/// A whole number as scripts pack it.
#[expect(clippy::cast_precision_loss, reason = "what is packed stays below 2^53")]
fn double(whole: u64) -> [u8; 8] {
    (whole as f64).to_be_bytes()
}

/// Length and bytes; `u16::MAX` for none.
fn put(bytes: &mut Vec<u8>, text: Option<&str>) {
    let text_bytes = text.map(|it| &it.as_bytes()[..it.len().min(usize::from(u16::MAX - 1))]);
    let length = text_bytes.map_or(Ok(u16::MAX), |it| u16::try_from(it.len()));
    bytes.extend(length.unwrap_or(0).to_be_bytes());
    bytes.extend(text_bytes.unwrap_or_default());
}

/// A record with its lock's name. `None` for bytes that are not ours.
pub(crate) fn read(record: &[u8], now: u64) -> Option<(Key, Occupant)> {
    let number = |at: usize| {
        let bytes = record.get(at..at + 8)?;
        Some(whole(bytes.try_into().ok()?))
    };
    // A holder's counter is the tick at which it entered, or a little more if grants came thick and fast.
    let (counter, expiry) = (number(2)?, number(10)?);
    let quarter = |at: usize| Some(u32::from_be_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let mut rest = record.get(74..)?;
    let key = Key::new(&text(&mut rest)??).ok()?;
    let host = text(&mut rest)??;
    let (pid, after) = rest.split_first_chunk::<4>()?;
    rest = after;
    let (owner, note) = (text(&mut rest)?, text(&mut rest)?);
    let label = Label::new(host, u32::from_be_bytes(*pid), owner, note);
    let occupant = Occupant::new(label, ticks(expiry.saturating_sub(now)))
        .since(Some(ticks(now.saturating_sub(counter))))
        .fence((record.first() == Some(&b'H')).then(|| Fence::of_grant(counter)))
        .load(Load::new(quarter(50)?, quarter(54)?));
    Some((key, occupant))
}

/// The next text: outer `None` if the bytes end too early, inner `None` if there is no text.
#[expect(clippy::option_option, reason = "broken and absent are different things")]
fn text(rest: &mut &[u8]) -> Option<Option<String>> {
    let (length, after) = rest.split_first_chunk::<2>()?;
    let length = u16::from_be_bytes(*length);
    if length == u16::MAX {
        *rest = after;
        return Some(None);
    }
    let (text, after) = after.split_at_checked(length.into())?;
    *rest = after;
    Some(Some(String::from_utf8_lossy(text).into_owned()))
}
