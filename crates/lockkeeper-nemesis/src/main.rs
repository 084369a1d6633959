//! `lockkeeper-nemesis [STORE…] [--seconds N] [--seed N] [--faults A,B] [--mutant NAME] [--write PAGE]`, and
//! `lockkeeper-nemesis 2pc [--crashes N] [--lost N] [--seed N] [--calm] [--write PAGE]`

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use fork::Fork;
use lockkeeper_nemesis::{
    Fault, StoreName, Torture, TwoPhaseTorture, run, run_two_phase, two_phase_helper, write, write_two_phase,
};
use lockkeeper_torture::{Trouble, Verdict};

/// How many broken promises of a kind are told.
const TOLD_MAX: usize = 5;

fn main() -> ExitCode {
    if let Some(code) = lockkeeper_torture::helper(std::env::args_os().skip(1), Some(forked)) {
        return ExitCode::from(code);
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = two_phase_helper(&words) {
        return ExitCode::from(code);
    }
    let fulfilled = match words.split_first() {
        Some((first, rest)) if first == "2pc" => two_phase(rest.iter().cloned()),
        _ => Wish::read(words.into_iter()).and_then(Wish::fulfil),
    };
    match fulfilled {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("torture: error: {error}"));
            ExitCode::from(2)
        }
    }
}

/// What is seen in a fork of this process. It ends as every program ends, with all that is done then.
fn forked(seen: &dyn Fn() -> bool) -> Result<bool, Trouble> {
    match fork::fork()? {
        Fork::Parent(pid) => Ok(fork::waitpid(pid)? == 0),
        Fork::Child => std::process::exit(i32::from(!seen())),
    }
}

/// Two-phase commit. Whether nothing was damaged that had a log.
fn two_phase(mut words: impl Iterator<Item = String>) -> Result<bool, Trouble> {
    let mut torture = TwoPhaseTorture {
        program: std::env::current_exe()?,
        crashes: 2000,
        lost: 10,
        servers: true,
        seed: u64::from(std::process::id()),
    };
    let mut page = None;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| Trouble::from(format!("`{word}` needs a value")));
        match word.as_str() {
            "--crashes" => torture.crashes = value()?.parse()?,
            "--lost" => torture.lost = value()?.parse()?,
            "--seed" => torture.seed = value()?.parse()?,
            "--calm" => torture.servers = false,
            "--write" => page = Some(PathBuf::from(value()?)),
            other => return Err(format!("`2pc` knows no `{other}`").into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let verdict = runtime.block_on(run_two_phase(&torture, &say))?;
    verdict.wrong.iter().for_each(|it| say(it));
    if let Some(page) = page {
        write_two_phase(&page, &verdict)?;
    }
    writeln!(std::io::stdout(), "{verdict}")?;
    Ok(verdict.is_kept())
}

/// What was asked for.
struct Wish {
    stores: Vec<StoreName>,
    span: Duration,
    seed: u64,
    faults: Option<Vec<Fault>>,
    mutant: String,
    page: Option<PathBuf>,
}

impl Wish {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, Trouble> {
        let mut wish = Wish {
            stores: Vec::new(),
            span: Duration::from_secs(60),
            seed: u64::from(std::process::id()),
            faults: None,
            mutant: "none".to_owned(),
            page: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| Trouble::from(format!("`{word}` needs a value")));
            match word.as_str() {
                "--seconds" => wish.span = Duration::from_secs(value()?.parse()?),
                "--seed" => wish.seed = value()?.parse()?,
                "--mutant" => wish.mutant = value()?,
                "--write" => wish.page = Some(value()?.into()),
                "--faults" => {
                    let known =
                        |it: &str| Fault::named(it).ok_or_else(|| format!("no fault is called `{it}`"));
                    wish.faults = Some(value()?.split(',').map(known).collect::<Result<_, _>>()?);
                }
                name => wish.stores.push(StoreName::named(name).ok_or_else(|| unknown(name))?),
            }
        }
        let faults = wish.faults.as_deref();
        if wish.stores.is_empty() {
            let is_hit = |store: &StoreName| faults.is_none_or(|all| all.iter().any(|it| it.applies(*store)));
            wish.stores = StoreName::ALL.into_iter().filter(is_hit).collect();
        } else if let Some(text) = faults.and_then(|all| not_struck(&wish.stores, all)) {
            return Err(text.into());
        }
        Ok(wish)
    }

    /// Whether every promise was kept.
    fn fulfil(self) -> Result<bool, Trouble> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let mut verdicts = Vec::new();
        for store in &self.stores {
            let torture = Torture {
                store: *store,
                program: std::env::current_exe()?,
                span: self.span,
                // The page has a row for each.
                whole: self.page.is_some(),
                seed: self.seed,
                faults: self
                    .faults
                    .clone()
                    .map(|it| it.into_iter().filter(|it| it.applies(*store)).collect()),
            };
            let mut verdict = runtime.block_on(run(&torture, &say))?;
            verdict.mutant.clone_from(&self.mutant);
            tell(&verdict, &self.again(*store));
            verdicts.push(verdict);
        }
        if let Some(page) = &self.page {
            write(page, &verdicts)?;
        }
        for verdict in &verdicts {
            writeln!(std::io::stdout(), "{verdict}")?;
        }
        Ok(verdicts.iter().all(Verdict::is_kept))
    }
}

impl Wish {
    /// The words that strike the same again: the faults and the time are part of what a seed decides.
    fn again(&self, store: StoreName) -> String {
        let mut words = format!("{} --seed {} --seconds {}", store.name(), self.seed, self.span.as_secs());
        if let Some(faults) = &self.faults {
            let names: Vec<&str> = faults.iter().map(|it| it.name()).collect();
            words.push_str(" --faults ");
            words.push_str(&names.join(","));
        }
        words
    }
}

/// What cannot be struck where it was asked for. A run without it would look as if it had been survived.
fn not_struck(stores: &[StoreName], faults: &[Fault]) -> Option<String> {
    let pairs = stores.iter().flat_map(|store| faults.iter().map(move |fault| (*store, *fault)));
    let mut reasons = pairs.filter_map(|(store, fault)| {
        let why = fault.left_out(store)?;
        Some(format!("{} is not struck on {}, because {why}", fault.name(), store.name()))
    });
    let first = reasons.next()?;
    Some(reasons.fold(first, |text, it| format!("{text}\n{it}")))
}

fn unknown(name: &str) -> String {
    let known: Vec<&str> = StoreName::ALL.iter().map(|it| it.name()).collect();
    format!("no store is called `{name}`; there are {}", known.join(", "))
}

fn tell(verdict: &Verdict, again: &str) {
    say(&verdict.table());
    for (word, count) in &verdict.failed {
        say(&format!("{}: {count} requests: {word}", verdict.store));
    }
    for remark in verdict.remarks() {
        say(&format!("{}: {remark}", verdict.store));
    }
    if !verdict.is_kept() {
        say(&format!("{}a promise was broken; see it again with: {again}", verdict.complaints(TOLD_MAX)));
    }
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_seen_again_by_all_that_it_was_asked_for() -> Result<(), Trouble> {
        let words = "redis --seconds 7 --seed 9 --faults calm,client-kill";
        let wish = Wish::read(words.split(' ').map(str::to_owned))?;
        assert_eq!(wish.again(StoreName::Redis), "redis --seed 9 --seconds 7 --faults calm,client-kill");
        let whole = Wish::read(["etcd", "--seed", "3"].map(str::to_owned).into_iter())?;
        assert_eq!(whole.again(StoreName::Etcd), "etcd --seed 3 --seconds 60");
        for wrong in ["--seconds", "--seconds x", "--faults nonsense", "nonsense"] {
            assert!(Wish::read(wrong.split(' ').map(str::to_owned)).is_err(), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn a_fault_that_is_not_struck_on_a_store_is_refused_with_its_reason_and_not_left_out() {
        let read = |words: &str| Wish::read(words.split(' ').map(str::to_owned));
        for words in ["sqlite --faults failover", "redis etcd --faults calm,failover"] {
            let said = read(words).err().map(|it| it.to_string()).unwrap_or_default();
            assert!(
                said.starts_with("failover is not struck on ") && said.contains(", because "),
                "{said:?}"
            );
        }
        // Where no store is named, those are meant on which it can be struck.
        let all = read("--faults failover").map(|it| it.stores.len()).unwrap_or_default();
        assert_eq!(all, 4);
    }
}
