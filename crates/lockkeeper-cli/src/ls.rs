//! `lockkeeper ls`: the locks that are held or waited for, once or again and again.

use std::fmt::Write as _;

use lockkeeper::spi::{Clock, LockInfo};
use lockkeeper::{Key, Leader};
use serde::Serialize;

use crate::exit::{Failure, Result};
use crate::live::{self, Frame};
use crate::looking::{self, Ls};
use crate::output;
use crate::proclaimed;
use crate::screen::Screen;
use crate::store::Target;
use crate::view;

#[derive(Serialize)]
struct List {
    locks: Vec<view::Lock>,
}

impl List {
    fn of(locks: &[LockInfo], leaders: &[(Key, Leader)]) -> Self {
        let leader = |key: &Key| leaders.iter().find(|it| it.0 == *key).map(|it| &it.1);
        List { locks: locks.iter().map(|it| view::Lock::of(it).led_by(leader(&it.key))).collect() }
    }
}

pub(crate) async fn ls(target: &Target, args: &Ls) -> Result<u8> {
    let prefix = args.which.prefix()?;
    let store = target.open().await?;
    if args.watch && !args.json.json && Screen::now().is_terminal {
        let frame = Frame { command: "ls --watch", store: target.shown(), sort: args.sort };
        return live::live(&store, prefix, args.which.every, frame).await;
    }
    let locker = args.leaders.then(|| store.locker.build());
    loop {
        let listed = store.inspect.list(prefix).await.map_err(|it| target.failure(it));
        let heard = match listed {
            Ok(mut locks) => {
                args.sort.apply(&mut locks);
                let leaders = match &locker {
                    Some(locker) => proclaimed::of_all(locker, &locks).await,
                    None => Vec::new(),
                };
                print(&locks, &leaders, args, target)?
            }
            // Whoever watches wants to see it come back, too.
            Err(failure) if args.watch => {
                output::say(&failure.text);
                true
            }
            Err(failure) => return Err(failure),
        };
        if !args.watch || !heard {
            return Ok(0);
        }
        Clock::boot().sleep(args.which.every).await;
    }
}

/// `false` if nobody reads it any more.
fn print(locks: &[LockInfo], leaders: &[(Key, Leader)], args: &Ls, target: &Target) -> Result<bool> {
    match (args.json.json, args.watch) {
        (true, false) => output::json(&List::of(locks, leaders)).map(|()| true),
        (true, true) => {
            let line = serde_json::to_string(&List::of(locks, leaders));
            let line = line.map_err(|it| {
                Failure::new(crate::exit::OUTPUT, format!("the answer cannot be written as JSON: {it}"))
            })?;
            output::is_heard(&format!("{}\n", crate::text::json(&line)))
        }
        (false, watch) if locks.is_empty() => {
            // Whoever expected some may look at another store than they think.
            output::say(&format!("no lock is held or waited for in {}", target.shown()));
            if watch { output::is_heard("\n") } else { Ok(true) }
        }
        (false, watch) => {
            let mut text = looking::lines(locks, Screen::now()).join("\n") + "\n";
            for (name, leader) in leaders {
                let (name, value) = (crate::text::cell(name.as_str()), crate::text::cell(&leader.value));
                let _ = writeln!(text, "{name} leads with: {value}");
            }
            // An empty line ends each look.
            if watch {
                text.push('\n');
            }
            output::is_heard(&text)
        }
    }
}
