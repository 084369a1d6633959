//! `lockkeeper break`: take a lock away from its holder.

use std::io::{self, BufRead as _, IsTerminal as _};

use lockkeeper::Key;
use lockkeeper::spi::Occupant;
use serde::Serialize;

use crate::args::Break;
use crate::exit::{self, Result};
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
    if !args.yes && io::stdin().is_terminal() && io::stderr().is_terminal() {
        let info = store.inspect.show(&key).await.map_err(|it| target.failure(it))?;
        if info.is_some_and(|it| !it.holders.is_empty() && !agreed(&key, &it.holders)) {
            output::say("nothing was broken");
            return Ok(exit::NO);
        }
    }
    let broken = store.inspect.break_lock(&key).await.map_err(|it| target.failure(it))?;
    if args.lock.json.json {
        let (name, broken) = (key.to_string(), broken.iter().map(view::Holder::of).collect());
        output::json(&Broken { name, broken })?;
        return Ok(0);
    }
    for it in &broken {
        output::data(&format!("broke {}, held by {}\n", text::quoted(key.as_str()), view::who(it)))?;
    }
    if broken.is_empty() {
        output::say(&format!("nobody holds {}; nothing was broken", text::quoted(key.as_str())));
    }
    Ok(0)
}

/// Ask whoever sits at the terminal.
fn agreed(key: &Key, holders: &[Occupant]) -> bool {
    for it in holders {
        let (name, who) = (text::quoted(key.as_str()), view::who(it));
        output::say_raw(&format!("{name} is held by {who} for {}.\n", view::since(it)));
    }
    output::say_raw("Two may work at a time until the holder notices. Break it? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "Yes" | "YES")
}
