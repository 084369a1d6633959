//! `lockkeeper break`: take a lock away from its holder.

use std::io::{self, BufRead as _, IsTerminal as _};

use lockkeeper::spi::{Broken as Outcome, DynInspect, Fault, Occupant};
use lockkeeper::{Fence, Key};
use serde::Serialize;

use crate::args::Break;
use crate::exit::{self, Failure, Result};
use crate::output;
use crate::store::Target;
use crate::{text, view};

#[derive(Serialize)]
struct Broken {
    name: String,
    broken: Vec<view::Holder>,
}

pub(crate) async fn break_lock(target: &Target, args: &Break) -> Result<u8> {
    let key = args.lock.key()?;
    let store = target.open().await?;
    let meant = args.fence.map(Fence::from_u64);
    let may_ask = !args.yes && io::stdin().is_terminal() && io::stderr().is_terminal();
    let broken = broken(store.inspect.as_ref(), &key, meant, may_ask.then_some(agreed as Ask)).await;
    let Some(broken) = broken.map_err(|it| target.failure(it))? else {
        output::say("nothing was broken");
        return Ok(exit::NO);
    };
    let code = if meant.is_some() && broken.is_empty() { exit::NO } else { 0 };
    if args.lock.json.json {
        let (name, broken) = (key.to_string(), broken.iter().map(view::Holder::of).collect());
        output::json(&Broken { name, broken })?;
        return Ok(code);
    }
    for it in &broken {
        output::data(&format!(
            "broke {}, held by {}{}\n",
            text::quoted(key.as_str()),
            view::who(it),
            view::as_what(it).trim_end_matches(',')
        ))?;
    }
    if broken.is_empty() {
        let how = meant.map(|it| format!(" with the fence {it}")).unwrap_or_default();
        output::say(&format!("nobody holds {}{how}; nothing was broken", text::quoted(key.as_str())));
    }
    Ok(code)
}

/// Shows holders to somebody, who says whether to break them.
type Ask = fn(&Key, &[Occupant]) -> bool;

/// Take the lock away, if whoever is asked agrees: who lost it. `None` if the answer is no.
async fn broken(
    store: &dyn DynInspect,
    key: &Key,
    meant: Option<Fence>,
    ask: Option<Ask>,
) -> Result<Option<Vec<Occupant>>> {
    let Some(ask) = ask else {
        return match meant {
            Some(fence) => only(store, key, fence).await.map(Some),
            None => Ok(Some(store.break_lock(key).await?)),
        };
    };
    let mut shown = store.show(key).await?.map(|it| it.holders).unwrap_or_default();
    shown.retain(|it| meant.is_none() || it.fence == meant);
    // Whoever comes after this look was shown to nobody.
    if shown.is_empty() {
        return Ok(Some(shown));
    }
    let compares = compares(store, key, &shown).await?;
    if !compares {
        output::say(
            "this store cannot compare and take away in one step: it is looked at once more after your answer, and whoever \
             takes the lock between that look and the break loses it",
        );
    }
    if !ask(key, &shown) {
        return Ok(None);
    }
    match meant {
        Some(fence) => only(store, key, fence).await.map(Some),
        None if compares => Ok(Some(those(store, key, &shown).await?)),
        None => Ok(Some(whoever_is_still_there(store, key, &shown).await?)),
    }
}

/// Whether the store can tell those who were shown from others while it breaks a lock.
async fn compares(store: &dyn DynInspect, key: &Key, shown: &[Occupant]) -> std::result::Result<bool, Fault> {
    // Nobody's fence, so nothing is broken.
    let told = store.break_holder(key, Fence::from_u64(u64::MAX)).await?;
    Ok(told != Outcome::Unsupported && shown.iter().all(|it| it.fence.is_some()))
}

/// Take the lock from the holder with this fence.
async fn only(store: &dyn DynInspect, key: &Key, fence: Fence) -> Result<Vec<Occupant>> {
    match store.break_holder(key, fence).await? {
        Outcome::Lost(it) => Ok(vec![it]),
        Outcome::Changed => Ok(Vec::new()),
        _ => Err(Failure::new(exit::USAGE, "this store cannot break one holder and spare the next")
            .or_hint(|| "leave --fence out and be sure who holds".into())),
    }
}

/// Take the lock from those who were shown, and from nobody else.
async fn those(
    store: &dyn DynInspect,
    key: &Key,
    shown: &[Occupant],
) -> std::result::Result<Vec<Occupant>, Fault> {
    let mut broken = Vec::new();
    for fence in shown.iter().filter_map(|it| it.fence) {
        match store.break_holder(key, fence).await? {
            Outcome::Lost(it) => broken.push(it),
            _ => output::say(&format!(
                "the holder with fence {fence} is gone; whoever came after it keeps the lock"
            )),
        }
    }
    Ok(broken)
}

/// The same where the store cannot compare: we do, as late as can be.
async fn whoever_is_still_there(
    store: &dyn DynInspect,
    key: &Key,
    shown: &[Occupant],
) -> std::result::Result<Vec<Occupant>, Fault> {
    let now = store.show(key).await?.map(|it| it.holders).unwrap_or_default();
    let same = |one: &Occupant, other: &Occupant| (&one.label, one.fence) == (&other.label, other.fence);
    if now.iter().all(|it| shown.iter().any(|old| same(old, it))) {
        return store.break_lock(key).await;
    }
    output::say("others hold it than those who were shown, and they keep it; look again if you mean them");
    Ok(Vec::new())
}

/// Ask whoever sits at the terminal.
fn agreed(key: &Key, holders: &[Occupant]) -> bool {
    for it in holders {
        let (name, who, kind) = (text::quoted(key.as_str()), view::who(it), view::as_what(it));
        output::say_raw(&format!("{name} is held by {who}{kind} for {}.\n", view::since(it)));
    }
    output::say_raw("Two may work at a time until the holder notices. Break it? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "Yes" | "YES")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use lockkeeper::spi::{Finding, Inspect, LockInfo, Memory};
    use lockkeeper::{Guard, Locker};

    use super::*;

    /// A store where somebody takes the lock right after each look at it; whoever held it before lets go.
    #[derive(Debug)]
    struct Changing {
        store: Memory,
        locker: Locker,
        held: Mutex<Option<Guard>>,
        /// Whether it can break one holder and spare the next.
        compares: bool,
        /// Whether the lock stays with its holder after all.
        is_calm: bool,
    }

    impl Changing {
        fn new() -> Self {
            let store = Memory::default();
            let locker = Locker::new(store.clone());
            Changing { locker, store, held: Mutex::default(), compares: true, is_calm: false }
        }

        async fn change(&self, key: &Key) {
            drop(self.held.lock().unwrap().take());
            let guard = self.locker.lock(key).await.unwrap();
            *self.held.lock().unwrap() = Some(guard);
        }

        /// Whether the store still knows the last who took it.
        async fn is_held(&self, key: &Key) -> bool {
            let last = self.held.lock().unwrap().as_ref().map(Guard::fence);
            let seen = Inspect::show(&self.store, key).await.unwrap();
            seen.is_some_and(|it| it.holders.iter().any(|it| it.fence == last))
        }
    }

    impl Inspect for Changing {
        async fn list(&self, prefix: &str) -> std::result::Result<Vec<LockInfo>, Fault> {
            Inspect::list(&self.store, prefix).await
        }

        async fn show(&self, key: &Key) -> std::result::Result<Option<LockInfo>, Fault> {
            let seen = Inspect::show(&self.store, key).await?;
            if !self.is_calm {
                self.change(key).await;
            }
            Ok(seen)
        }

        async fn break_lock(&self, key: &Key) -> std::result::Result<Vec<Occupant>, Fault> {
            Inspect::break_lock(&self.store, key).await
        }

        async fn break_holder(&self, key: &Key, fence: Fence) -> std::result::Result<Outcome, Fault> {
            if !self.compares {
                return Ok(Outcome::Unsupported);
            }
            Inspect::break_holder(&self.store, key, fence).await
        }

        async fn doctor(&self) -> std::result::Result<Vec<Finding>, Fault> {
            Inspect::doctor(&self.store).await
        }
    }

    #[tokio::test]
    async fn who_was_not_shown_is_not_broken() {
        let (store, key) = (Changing::new(), Key::new("x").unwrap());
        let nobody_is_asked: Ask = |_, _| panic!("there was nobody to ask about");
        let lost = broken(&store, &key, None, Some(nobody_is_asked)).await.unwrap().unwrap();
        assert!(lost.is_empty() && store.is_held(&key).await, "it was free when it was looked at: {lost:?}");
        let lost = broken(&store, &key, None, Some(|_, shown| shown.len() == 1)).await.unwrap().unwrap();
        assert!(lost.is_empty() && store.is_held(&key).await, "whoever was shown is gone: {lost:?}");
        let refused = broken(&store, &key, None, Some(|_, _| false)).await.unwrap();
        assert!(refused.is_none() && store.is_held(&key).await);
    }

    #[tokio::test]
    async fn without_a_question_whoever_holds_it_is_broken() {
        let (store, key) = (Changing::new(), Key::new("x").unwrap());
        assert!(broken(&store, &key, None, None).await.unwrap().unwrap().is_empty());
        store.change(&key).await;
        let lost = broken(&store, &key, None, None).await.unwrap().unwrap();
        assert!(lost.len() == 1 && !store.is_held(&key).await, "{lost:?}");
    }

    /// As Redlock and session locks.
    #[tokio::test]
    async fn where_the_store_cannot_compare_it_is_looked_at_once_more() {
        let (mut store, key) = (Changing { compares: false, ..Changing::new() }, Key::new("x").unwrap());
        store.change(&key).await;
        let yes: Ask = |_, shown| shown.len() == 1;
        let lost = broken(&store, &key, None, Some(yes)).await.unwrap().unwrap();
        assert!(lost.is_empty() && store.is_held(&key).await, "whoever was shown is gone: {lost:?}");
        store.is_calm = true;
        let lost = broken(&store, &key, None, Some(yes)).await.unwrap().unwrap();
        assert!(lost.len() == 1 && !store.is_held(&key).await, "whoever was shown still held it: {lost:?}");
    }
}
