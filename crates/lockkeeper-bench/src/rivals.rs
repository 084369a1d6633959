//! What users would take instead, beside ours: the same servers, the same work, in turns. `cargo xtask bench rivals` calls this.
//!
//! ```text
//!   list: who ── fight: processes that fight, one that crashes ── figures: what they reached
//!     worker: a process of ours · command: flock(1) beside `lockkeeper run` · page, plot: docs/rivals.md and its pictures
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
use page::{Part, Run, Sheet};

/// The word that asks for all this.
pub(crate) const RIVALS: &str = "rivals";

/// What to run.
struct Wish {
    /// Where the programs of other languages are, each in a folder of its name.
    programs: PathBuf,
    page: PathBuf,
    span: Duration,
    turns: usize,
    stores: Vec<String>,
}

/// `--programs FOLDER --page FILE [--seconds N] [--turns N] [STORE…]`. The page is renewed after every store; one that cannot be
/// run keeps no other from it.
pub(crate) fn run(words: &[String]) -> Answer<()> {
    let wish = Wish::read(words)?;
    let run = Run { load: page::load(), span: wish.span, turns: wish.turns };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut failed = Vec::new();
    let mut done = |title: &'static str, part: Answer<Part>| -> Answer<()> {
        let part = part.unwrap_or_else(|error| {
            say(&format!("{title} could not be run: {error}"));
            failed.push(title);
            Part::Failed { title, why: error.to_string() }
        });
        run.write(&part, &wish.page)
    };
    for store in STORES.into_iter().filter(|it| wish.wants(it.name())) {
        let sheet = runtime.block_on(of_store(store, &wish));
        done(store.title(), sheet.map(Part::Sheet))?;
    }
    if wish.wants("command") {
        done(command::TITLE, command::run(&wish.programs, wish.span).map(Part::Commands))?;
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("not run: {}", failed.join(", ")).into()) }
}

impl Wish {
    fn read(words: &[String]) -> Answer<Self> {
        let (page, programs) = ("docs/rivals.md".into(), "target/rivals".into());
        // All stores in about twenty minutes. Of two turns there is no median.
        let (span, turns, stores) = (Duration::from_secs(2), 3, Vec::new());
        let mut wish = Wish { programs, page, span, turns, stores };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} what?"));
            match word.as_str() {
                "--programs" => wish.programs = value()?.into(),
                "--page" => wish.page = value()?.into(),
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
    site.second_database(list::SECOND).await?;
    let contestants: Vec<Contestant> = list::of(store);
    let mut sheet = Sheet::new(store, contestants.iter().map(|it| it.name).collect());
    for turn in 0..wish.turns {
        for (at, contestant) in contestants.iter().enumerate() {
            match Fight::prepare(contestant, &site, &wish.programs) {
                Ok(fight) => a_turn(&mut sheet, at, &fight, wish.span, turn).await,
                Err(words) => sheet.missing(at, words),
            }
        }
    }
    Ok(sheet)
}

/// One contestant in all worlds, and once a holder that is killed.
async fn a_turn(sheet: &mut Sheet, at: usize, fight: &Fight<'_>, span: Duration, turn: usize) {
    let who = format!("{}: {}", sheet.title(), fight.name());
    for world in World::ALL {
        if sheet.has_failed(at, world) {
            continue;
        }
        match fight.world(world, span).await {
            Ok(figures) => {
                say(&format!("{who}, {}, turn {}: {}", world.name(), turn + 1, page::told(world, &figures)));
                sheet.add(at, world, figures);
            }
            Err(error) => {
                say(&format!("{who}, {}: {error}", world.name()));
                sheet.failed(at, world, &error.to_string());
            }
        }
    }
    if turn == 0 {
        match fight.crash().await {
            Ok(span) => {
                say(&format!("{who}, crash: taken over after {span:.1?}"));
                sheet.taken_over(at, span);
            }
            Err(error) => {
                say(&format!("{who}: nobody took over: {error}"));
                sheet.not_taken_over(at, &error.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_and_options_are_read_and_the_rest_refused() -> Answer<()> {
        let read = |words: &str| Wish::read(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let all = read("")?;
        assert!(STORES.iter().all(|it| all.wants(it.name())) && all.wants("command"));
        let two = read("mysql command --turns 0 --seconds 5")?;
        assert!(two.wants("mysql") && two.wants("command") && !two.wants("redis"));
        assert_eq!((two.turns, two.span, all.turns), (1, Duration::from_secs(5), 3));
        assert!(read("oracle").is_err() && read("--turns").is_err() && read("--seconds x").is_err());
        Ok(())
    }
}
