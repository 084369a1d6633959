//! `lockkeeper show`: everything about one lock.

use std::fmt::Write as _;

use lockkeeper::Leader;
use lockkeeper::spi::LockInfo;

use crate::args::Named;
use crate::exit::Result;
use crate::output::{self, span};
use crate::store::Target;
use crate::{proclaimed, text, view};

pub(crate) async fn show(target: &Target, args: &Named) -> Result<u8> {
    let key = args.key()?;
    let store = target.open().await?;
    let found = store.inspect.show(&key).await.map_err(|it| target.failure(it))?;
    let info = found.unwrap_or(LockInfo::new(key, Vec::new(), Vec::new()));
    let leader = proclaimed::of(&store.locker.build(), &info).await;
    if args.json.json {
        output::json(&view::Lock::of(&info).led_by(leader.as_ref()))?;
    } else {
        output::data(&in_words(&info, leader.as_ref()))?;
    }
    Ok(0)
}

fn in_words(info: &LockInfo, leader: Option<&Leader>) -> String {
    let state = match (info.holders.is_empty(), info.waiters.is_empty()) {
        (false, _) => "held",
        (true, _) if !info.foreign.is_empty() => "blocked by what is not Lockkeeper's",
        (true, false) => "waited for, held by nobody just now",
        (true, true) => "free",
    };
    let mut out = format!("name:       {}\nstate:      {state}\n", text::cell(info.key.as_str()));
    for it in &info.holders {
        let fence = it.fence.map_or_else(|| "?".to_owned(), |it| it.to_string());
        let _ = writeln!(out, "holder:     {}", view::who(it));
        let _ = writeln!(out, "  kind:     {}", view::Kind::of(it.load));
        let _ = writeln!(out, "  note:     {}", view::holders_note(it).unwrap_or_else(|| "-".into()));
        let _ = writeln!(out, "  held for: {}", view::since(it));
        let _ = writeln!(out, "  fence:    {fence}");
        let _ = writeln!(out, "  valid:    {}", span(it.valid_for));
    }
    if let Some(leader) = leader {
        let _ = writeln!(out, "leads with: {}", text::cell(&leader.value));
    }
    for it in &info.foreign {
        let _ = writeln!(out, "foreign:    {}", text::cell(it));
    }
    let _ = writeln!(out, "waiters:    {}", view::crowd(&info.waiters));
    for (position, it) in (1..).zip(&info.waiters) {
        let note = view::note(it).map(|it| format!(" ({it})")).unwrap_or_default();
        let (who, since, valid) = (view::who(it), view::since(it), span(it.valid_for));
        let kind = view::Kind::of(it.load);
        let _ = writeln!(out, "  {position}. {kind}: {who}{note}, waiting for {since}, place valid {valid}");
    }
    out
}

#[cfg(test)]
mod tests {
    use lockkeeper::Key;

    use super::*;

    #[test]
    fn what_is_not_ours_is_named_and_the_lock_is_not_called_free() {
        let mut info = LockInfo::new(Key::new("a").unwrap(), Vec::new(), Vec::new());
        assert!(in_words(&info, None).contains("state:      free\n"));
        info.foreign = vec!["\x1b[2J/locks/a/mine: remove it".into()];
        let words = in_words(&info, None);
        assert!(words.contains("state:      blocked by what is not Lockkeeper's\n"), "{words}");
        assert!(words.contains("foreign:    \\u{1b}[2J/locks/a/mine: remove it\n"), "{words}");
        let json = serde_json::to_value(view::Lock::of(&info)).unwrap();
        assert_eq!(json["foreign"][0], "\x1b[2J/locks/a/mine: remove it");
        assert!(view::in_the_way(&info).unwrap().contains("not Lockkeeper's"));
    }
}
