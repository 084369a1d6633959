//! `lockkeeper show`: everything about one lock.

use std::fmt::Write as _;

use lockkeeper::Load;
use lockkeeper::spi::{LockInfo, Occupant};

use crate::args::Named;
use crate::exit::Result;
use crate::output::{self, span};
use crate::store::Target;
use crate::{text, view};

pub(crate) async fn show(target: &Target, args: &Named) -> Result<u8> {
    let key = args.key()?;
    let store = target.open().await?;
    let found = store.inspect.show(&key).await.map_err(|it| target.failure(it))?;
    let info = found.unwrap_or(LockInfo::new(key, Vec::new(), Vec::new()));
    if args.json.json {
        output::json(&view::Lock::of(&info))?;
    } else {
        output::data(&in_words(&info))?;
    }
    Ok(0)
}

fn in_words(info: &LockInfo) -> String {
    let state = match (info.holders.is_empty(), info.waiters.is_empty()) {
        (false, _) => "held",
        (true, false) => "waited for, held by nobody just now",
        (true, true) => "free",
    };
    let mut out = format!("name:       {}\nstate:      {state}\n", text::cell(info.key.as_str()));
    for it in &info.holders {
        let fence = it.fence.map_or_else(|| "?".to_owned(), |it| it.to_string());
        let _ = writeln!(out, "holder:     {}", view::who(it));
        let _ = writeln!(out, "  note:     {}", view::note(it).unwrap_or_else(|| "-".into()));
        let _ = writeln!(out, "  held for: {}", view::since(it));
        let _ = writeln!(out, "  fence:    {fence}");
        let _ = writeln!(out, "  valid:    {}{}", span(it.valid_for), weight(it));
    }
    let _ = writeln!(out, "waiters:    {}", info.waiters.len());
    for (position, it) in (1..).zip(&info.waiters) {
        let note = view::note(it).map(|it| format!(" ({it})")).unwrap_or_default();
        let (who, since, valid) = (view::who(it), view::since(it), span(it.valid_for));
        let _ = writeln!(
            out,
            "  {position}. {who}{note}, waiting for {since}, place valid {valid}{}",
            weight(it)
        );
    }
    out
}

/// Said only where it is not a plain mutex.
fn weight(it: &Occupant) -> String {
    match it.load {
        Load::MUTEX => String::new(),
        load => format!(", {load}"),
    }
}
