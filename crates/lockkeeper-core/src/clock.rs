//! The only file that reads a clock or sleeps: time that runs through suspend, or virtual time in tests.
//!
//! `std::time::Instant` stops while the machine is suspended, so a holder that sleeps through its
//! deadline would believe itself valid on waking. `CLOCK_BOOTTIME` does not stop.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Sub;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::kit::locked;

/// A point on a [`Clock`], in nanoseconds since that clock's beginning. Arithmetic saturates.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper_core::Moment;
///
/// let start = Moment::from_nanos(5_000_000_000);
/// let end = start.after(Duration::from_secs(3));
/// assert_eq!(end - start, Duration::from_secs(3));
/// assert_eq!(start - end, Duration::ZERO);
/// assert_eq!(end.before(Duration::from_secs(8)).as_nanos(), 0);
/// assert_eq!(start.after(Duration::MAX), Moment::NEVER);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// A moment that never comes.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The moment this many nanoseconds after the clock's beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment moved later; [`Moment::NEVER`] if it would overflow.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Moment(self.0.saturating_add(nanos(span)))
    }

    /// This moment moved earlier, at most to the clock's beginning.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Moment(self.0.saturating_sub(nanos(span)))
    }
}

/// The span from `earlier` to `self`; zero if `earlier` is in fact later.
impl Sub for Moment {
    type Output = Duration;

    fn sub(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A span in half the room of a `Duration`, for structs that are moved often. Saturates at about 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(u64);

impl Span {
    /// Longer than any clock runs.
    pub(crate) const ENDLESS: Span = Span(u64::MAX);

    pub(crate) const ZERO: Span = Span(0);
}

impl From<Duration> for Span {
    fn from(span: Duration) -> Self {
        Span(nanos(span))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Duration::from_nanos(span.0)
    }
}

/// A clock for deadlines: the machine's boot clock, or a virtual one that only tests move.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Clock, Locker, Memory};
///
/// // In a test nobody waits ten seconds.
/// let clock = Clock::virtual_from(Duration::from_secs(100));
/// let locker = Locker::builder(Memory::new(clock.clone())).clock(clock.clone()).build();
/// let guard = locker.lock("orders/42").max_hold(Duration::from_secs(10)).await?;
/// clock.advance_by(Duration::from_secs(9));
/// assert!(guard.remaining() <= Duration::from_secs(1));
/// clock.advance_by(Duration::from_secs(2));
/// assert!(!guard.is_valid());
///
/// assert!(Clock::boot().now() <= Clock::boot().now());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Mutex<Virtual>>>);

#[derive(Default)]
struct Virtual {
    now: u64,
    timers: BTreeMap<(u64, u64), Waker>,
    timers_made: u64,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Clock(virtual)" } else { "Clock(boot)" })
    }
}

impl Clock {
    /// The clock of this machine, counted from its boot and not stopped by suspend.
    pub fn boot() -> Self {
        Clock(None)
    }

    /// A clock that stands still until [`Clock::advance`] moves it. For tests and simulation.
    pub fn virtual_from(start: Duration) -> Self {
        Clock(Some(Arc::new(Mutex::new(Virtual { now: nanos(start), ..Virtual::default() }))))
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        match &self.0 {
            None => Moment(boot_nanos()),
            Some(it) => Moment(locked(it).now),
        }
    }

    /// Sleep for `span`. `Duration::MAX` sleeps for ever and does not panic.
    ///
    /// On the boot clock this needs a tokio runtime with timers in context when first polled.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub fn sleep(&self, span: Duration) -> Sleep {
        self.sleep_until(self.now().after(span))
    }

    /// Sleep until `due`, judged by this clock and not by the runtime's timer alone.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub fn sleep_until(&self, due: Moment) -> Sleep {
        Sleep { clock: self.clone(), due, timer: None, ticket: None }
    }

    /// The answer of `future`, or `None` if it has not come by `until`. The future is asked first, and can be
    /// polled further if it did not answer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use lockkeeper_core::Clock;
    ///
    /// let (clock, mut answer) = (Clock::boot(), Box::pin(std::future::pending::<u8>()));
    /// let soon = clock.now().after(Duration::from_millis(5));
    /// assert_eq!(clock.within(soon, &mut answer).await, None);
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// As safe as dropping `future`.
    pub async fn within<F: Future + Unpin>(&self, until: Moment, mut future: F) -> Option<F::Output> {
        // A timer costs more than a quick answer: make one only when the answer is not there.
        let mut timer = None;
        poll_fn(|cx| {
            if let Poll::Ready(answer) = Pin::new(&mut future).poll(cx) {
                return Poll::Ready(Some(answer));
            }
            let timer = timer.get_or_insert_with(|| self.sleep_until(until));
            Pin::new(timer).poll(cx).map(|()| None)
        })
        .await
    }

    /// Virtual clocks only: jump to the next timer and fire all that are due. `false` if none waits.
    pub fn advance(&self) -> bool {
        let Some(shared) = &self.0 else { return false };
        let mut due = Vec::new();
        {
            let mut time = locked(shared);
            let Some((&(next, _), _)) = time.timers.first_key_value() else {
                return false;
            };
            time.now = time.now.max(next);
            while let Some(entry) = time.timers.first_entry().filter(|it| it.key().0 <= next) {
                due.push(entry.remove());
            }
        }
        due.into_iter().for_each(Waker::wake);
        true
    }

    /// Virtual clocks only: let `span` pass, firing timers on the way. Does nothing on the boot clock.
    pub fn advance_by(&self, span: Duration) {
        let Some(shared) = &self.0 else { return };
        let end = locked(shared).now.saturating_add(nanos(span));
        loop {
            let next = locked(shared).timers.first_key_value().map(|(key, _)| key.0);
            if next.is_none_or(|it| it > end) || !self.advance() {
                break;
            }
        }
        let mut time = locked(shared);
        time.now = time.now.max(end);
    }
}

/// The time of day, counted from 1970. It steps, and hosts disagree about it: nothing is judged by it. It is good for
/// telling people how far two clocks are apart, and for a floor that is larger than all numbers of last year.
///
/// ```
/// use lockkeeper_core::clock::time_of_day;
///
/// assert!(time_of_day().as_secs() > 1_600_000_000, "it is after 2020");
/// ```
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn time_of_day() -> Duration {
    // Before 1970 is as good as 1970.
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Block this thread for a while.
///
/// ```
/// lockkeeper_core::clock::pause_thread(std::time::Duration::from_millis(1));
/// ```
pub fn pause_thread(span: Duration) {
    std::thread::sleep(span);
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
// Elsewhere the monotonic clock is the nearest thing; on Apple systems it also runs through sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

fn boot_nanos() -> u64 {
    let time = rustix::time::clock_gettime(CLOCK);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or(0))
}

/// The future of [`Clock::sleep`].
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::Clock;
///
/// let clock = Clock::boot();
/// let start = clock.now();
/// clock.sleep(Duration::from_millis(1)).await;
/// assert!(clock.now() - start >= Duration::from_millis(1));
/// clock.sleep_until(start).await; // long past
/// # Ok(())
/// # }
/// ```
#[must_use = "a sleep does nothing unless awaited"]
#[derive(Debug)]
pub struct Sleep {
    clock: Clock,
    due: Moment,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
    ticket: Option<u64>,
}

/// The runtime's timers stop in suspend; waking at least this often keeps a sleeper close to the boot clock.
const NAP_MAX: Duration = Duration::from_secs(1);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let it = &mut *self;
        if let Some(shared) = &it.clock.0 {
            return poll_virtual(shared, it.due, &mut it.ticket, cx);
        }
        if it.due == Moment::NEVER {
            return Poll::Pending;
        }
        loop {
            let now = it.clock.now();
            if it.due <= now {
                return Poll::Ready(());
            }
            #[expect(clippy::disallowed_methods, reason = "this is the clock")]
            let timer =
                it.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep((it.due - now).min(NAP_MAX))));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            it.timer = None;
        }
    }
}

fn poll_virtual(
    shared: &Mutex<Virtual>,
    due: Moment,
    ticket: &mut Option<u64>,
    cx: &Context<'_>,
) -> Poll<()> {
    let mut time = locked(shared);
    if due.0 <= time.now {
        if let Some(it) = ticket.take() {
            time.timers.remove(&(due.0, it));
        }
        return Poll::Ready(());
    }
    if due != Moment::NEVER {
        let id = *ticket.get_or_insert_with(|| {
            time.timers_made += 1;
            time.timers_made
        });
        time.timers.insert((due.0, id), cx.waker().clone());
    }
    Poll::Pending
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(shared), Some(ticket)) = (&self.clock.0, self.ticket) {
            locked(shared).timers.remove(&(self.due.0, ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_saturates_instead_of_overflowing() {
        let now = Clock::boot().now();
        assert_eq!(now.after(Duration::MAX), Moment::NEVER);
        assert_eq!(now.before(Duration::MAX), Moment::from_nanos(0));
        assert_eq!(now - now.after(Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn the_boot_clock_is_the_kernels_and_moves_forward() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let now = Clock::boot().now();
        assert!((now - Moment::from_nanos(0)).as_secs_f64() >= uptime - 1.0);
        assert!(Clock::boot().now() >= now);
    }

    #[test]
    fn a_virtual_clock_moves_only_when_told() {
        let clock = Clock::virtual_from(Duration::from_secs(5));
        let start = clock.now();
        let mut sleep = Box::pin(clock.sleep(Duration::from_secs(3)));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(&mut cx).is_pending());
        assert_eq!(clock.now(), start);
        assert!(clock.advance());
        assert!(sleep.as_mut().poll(&mut cx).is_ready());
        assert_eq!(clock.now() - start, Duration::from_secs(3));
        assert!(!clock.advance(), "a finished sleep leaves no timer behind");
    }

    #[test]
    fn advance_by_stops_exactly_where_told() {
        let clock = Clock::virtual_from(Duration::ZERO);
        clock.advance_by(Duration::from_millis(250));
        assert_eq!(clock.now(), Moment::from_nanos(250_000_000));
    }
}
