//! The page of the book about this torture: `docs/torture-2pc.md`, written by the tool and never by hand.

use std::path::Path;

use lockkeeper_torture::Trouble;

use super::TwoPhaseVerdict;

/// Write it anew.
///
/// # Errors
/// If it cannot be written.
pub fn write_two_phase(page: &Path, verdict: &TwoPhaseVerdict) -> Result<(), Trouble> {
    let lost = verdict.lost;
    let text = format!(
        "\
# Torture of two-phase commit

Written by `cargo xtask torture 2pc --write`, never by hand. Coordinators in processes of their own move money from PostgreSQL to
MariaDB, four at a time, with the log in an SQLite file. Each ends itself by SIGKILL at a step of the protocol that a seed draws; one
of forty stands still instead (SIGSTOP) until another has its seat, and goes on. Meanwhile one server or both are killed and
started again. After every 250 deaths everything is recovered and looked at: the money is all there, a move is at one server
if and only if it is at the other, nothing is prepared, the log has nothing to finish, and what each caller was told is what happened.

| figure | |
|---|---|
| coordinators killed | {killed} |
| coordinators that stood still, were replaced and went on | {stopped} |
| servers killed | {servers} |
| transfers told committed | {committed} |
| transfers told aborted | {aborted} |
| transfers in both databases in the end | {moved} |
| **damage with a log** | **{damage}** |

\"If coordinator and participants both crash, two-phase commit may lead to inconsistency.\" With a log it did not, above. Without one it
does: the coordinator dies when PostgreSQL has acted and MariaDB has not heard, its log is deleted, and PostgreSQL is dead as well. The
textbook's rule is to ask the living and to suppose a commit; half of the rounds were on the way to one, half on the way back.

| figure, without the log | |
|---|---|
| rounds | {rounds} |
| **damage by the textbook's rule** | **{damaged}** |
| of these told afterwards by `lockkeeper 2pc recover --without-log` as perhaps damaged | {reported} |
| damage by `lockkeeper 2pc recover --without-log` | {by_us} |
| rounds that it leaves to a person | {left} |

`{verdict}`
",
        killed = verdict.killed,
        stopped = verdict.stopped,
        servers = verdict.servers,
        committed = verdict.committed,
        aborted = verdict.aborted,
        moved = verdict.moved,
        damage = verdict.wrong.len(),
        rounds = lost.rounds,
        damaged = lost.damaged,
        reported = lost.reported,
        by_us = lost.damaged_by_us,
        left = lost.left,
    );
    std::fs::write(page, text)?;
    Ok(())
}
