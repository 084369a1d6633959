//! A short torture of two-phase commit: some deaths of coordinators and servers, and what a lost log costs.

use lockkeeper_nemesis::{TwoPhaseTorture, run_two_phase};
use lockkeeper_torture::Trouble;

#[test]
fn a_bank_loses_nothing_with_a_log_and_is_split_without() -> Result<(), Trouble> {
    let torture = TwoPhaseTorture {
        program: env!("CARGO_BIN_EXE_lockkeeper-nemesis").into(),
        crashes: 40,
        lost: 2,
        servers: true,
        seed: 20_261_118,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let verdict = runtime.block_on(run_two_phase(&torture, &|_| {}))?;
    // By these words `cargo xtask test` knows that asking once more would only hide it.
    assert!(verdict.is_kept(), "A promise was broken\n{verdict}: {:?}", verdict.wrong);
    assert!(verdict.killed + verdict.stopped >= 40, "{verdict}");
    assert_eq!(verdict.lost.damaged, 1, "the way back is what the textbook's rule splits: {verdict}");
    assert_eq!(verdict.lost.reported, 1, "and what was split is told: {verdict}");
    assert_eq!(verdict.lost.left, 1, "and what we leave to a person: {verdict}");
    Ok(())
}
