//! What users would take instead, beside ours: the same servers, the same work, in turns. `cargo xtask bench rivals` calls this.
//!
//! ```text
//!   list: who ── fight: processes that fight, one that crashes ── figures: what they reached
//!     worker: a process of ours · command: flock(1) beside `lockkeeper run` · page, plot: docs/rivals.md
//! ```

mod command;
mod fight;
mod figures;
mod list;
mod page;
mod plot;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use crate::Answer;
use crate::report::say;
use crate::site::{Site, Store};
pub(crate) use worker::{CHILD, work};

use fight::{Fight, World};
use list::{Contestant, STORES};
use page::Sheet;

/// The word that asks for all this.
pub(crate) const RIVALS: &str = "rivals";

/// What to run.
struct Wish {
    /// Where the programs of other languages are, each in a folder of its name.
    programs: PathBuf,
    page: PathBuf,
    plot: PathBuf,
    span: Duration,
    turns: usize,
    stores: Vec<String>,
}

/// `--programs FOLDER --page FILE --plot FILE [--seconds N] [--turns N] [STORE…]`
pub(crate) fn run(words: &[String]) -> Answer<()> {
    let (wish, load) = (Wish::read(words)?, page::load());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut sheets = Vec::new();
    for store in STORES.into_iter().filter(|it| wish.wants(it.name())) {
        sheets.push(runtime.block_on(of_store(store, &wish))?);
    }
    let commands = if wish.wants("command") { command::run(&wish.programs, wish.span)? } else { Vec::new() };
    let all = page::Page { load, span: wish.span, turns: wish.turns, sheets, commands };
    all.write(&wish.page, &wish.plot)
}

impl Wish {
    fn read(words: &[String]) -> Answer<Self> {
        let (page, plot) = ("docs/rivals.md".into(), "docs/rivals.svg".into());
        let programs = "target/rivals".into();
        let (span, turns, stores) = (Duration::from_secs(3), 3, Vec::new());
        let mut wish = Wish { programs, page, plot, span, turns, stores };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} what?"));
            match word.as_str() {
                "--programs" => wish.programs = value()?.into(),
                "--page" => wish.page = value()?.into(),
                "--plot" => wish.plot = value()?.into(),
                "--seconds" => wish.span = Duration::from_secs(value()?.parse::<u64>()?.max(1)),
                "--turns" => wish.turns = value()?.parse::<usize>()?.max(1),
                store if store == "command" || STORES.iter().any(|it| it.name() == store) => {
                    wish.stores.push(word.clone());
                }
                other => return Err(format!("`{other}` is neither a store nor an option").into()),
            }
        }
        Ok(wish)
    }

    fn wants(&self, store: &str) -> bool {
        self.stores.is_empty() || self.stores.iter().any(|it| it == store)
    }
}

/// Everybody on one store, in turns, so that what the machine does meanwhile hits all.
async fn of_store(store: Store, wish: &Wish) -> Answer<Sheet> {
    let site = Site::start(store).await?;
    let contestants: Vec<Contestant> = list::of(store);
    let mut sheet = Sheet::new(store, contestants.iter().map(|it| it.name).collect());
    for turn in 0..wish.turns {
        for (at, contestant) in contestants.iter().enumerate() {
            let fight = match Fight::prepare(contestant, &site, &wish.programs) {
                Ok(fight) => fight,
                Err(words) => {
                    sheet.missing(at, words);
                    continue;
                }
            };
            for world in World::ALL {
                say(&format!("{}: {}, {}, turn {}", store.name(), contestant.name, world.name(), turn + 1));
                match fight.world(world, wish.span).await {
                    Ok(figures) => sheet.add(at, world, figures),
                    Err(error) => sheet.failed(at, world, &error.to_string()),
                }
            }
            match fight.crash().await {
                Ok(span) => sheet.taken_over(at, span),
                Err(error) => say(&format!("{}: nobody took over: {error}", contestant.name)),
            }
        }
    }
    Ok(sheet)
}
