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
    let (mut shown, meant) = (Vec::new(), args.fence.map(Fence::from_u64));
    if !args.yes && io::stdin().is_terminal() && io::stderr().is_terminal() {
        let info = store.inspect.show(&key).await.map_err(|it| target.failure(it))?;
        shown = info.map(|it| it.holders).unwrap_or_default();
        shown.retain(|it| meant.is_none() || it.fence == meant);
        if !shown.is_empty() && !agreed(&key, &shown) {
            output::say("nothing was broken");
            return Ok(exit::NO);
        }
    }
    let broken = match meant {
        Some(fence) => only(store.inspect.as_ref(), &key, fence).await,
        None => take_away(store.inspect.as_ref(), &key, &shown).await.map_err(Failure::from),
    };
    let broken = broken.map_err(|it| target.failure(it))?;
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

/// Take the lock from the holder with this fence.
async fn only(store: &dyn DynInspect, key: &Key, fence: Fence) -> Result<Vec<Occupant>> {
    match store.break_holder(key, fence).await? {
        Outcome::Lost(it) => Ok(vec![it]),
        Outcome::Changed => Ok(Vec::new()),
        _ => Err(Failure::new(exit::USAGE, "this store cannot break one holder and spare the next")
            .or_hint(|| "leave --fence out and be sure who holds".into())),
    }
}

/// Take the lock from those who were shown, where the store can tell them from others; without any, from whoever holds it.
async fn take_away(
    store: &dyn DynInspect,
    key: &Key,
    shown: &[Occupant],
) -> std::result::Result<Vec<Occupant>, Fault> {
    if shown.is_empty() || shown.iter().any(|it| it.fence.is_none()) {
        return store.break_lock(key).await;
    }
    let mut broken = Vec::new();
    for fence in shown.iter().filter_map(|it| it.fence) {
        match store.break_holder(key, fence).await? {
            Outcome::Lost(it) => broken.push(it),
            Outcome::Unsupported => return store.break_lock(key).await,
            _ => output::say(&format!(
                "the holder with fence {fence} is gone; whoever came after it keeps the lock"
            )),
        }
    }
    Ok(broken)
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
