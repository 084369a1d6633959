//! The scripts: one per verb, built once per backend, called by hash and sent whole when the server lacks them.

use redis::Cmd;

const ROOM: &str = include_str!("scripts/room.lua");
const SHAPE: &str = include_str!("scripts/shape.lua");

/// A script and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
}

impl Script {
    /// `cluster` says to wake by sharded channels, which live in the lock's own slot.
    fn new(header: &str, text: &str, cluster: bool) -> Self {
        let mut text = format!("{header}{}", text.replace("--@room", ROOM).replace("--@shape", SHAPE));
        if cluster {
            text = text
                .replace("'PUBLISH'", "'SPUBLISH'")
                .replace("--@channel", ".. string.sub(main, brace, brace + 3) .. ':'")
                // `{`, two digits, `}` and a colon.
                .replace("--@mark", ".. string.match(main, '{..}:')");
        }
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Script { text, sha }
    }

    /// The call by hash.
    pub(crate) fn by_hash(&self, call: &Call<'_>) -> Cmd {
        call.command("EVALSHA", &self.sha)
    }

    /// The call with the whole text, which the server then remembers.
    pub(crate) fn by_text(&self, call: &Call<'_>) -> Cmd {
        call.command("EVAL", &self.text)
    }
}

/// The keys and arguments of one call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) keys: &'a [&'a str],
    pub(crate) args: &'a [&'a [u8]],
}

impl Call<'_> {
    fn command(&self, verb: &str, script: &str) -> Cmd {
        let keys: usize = self.keys.iter().map(|it| it.len()).sum();
        let args: usize = self.args.iter().map(|it| it.len()).sum();
        let mut cmd = Cmd::with_capacity(
            3 + self.keys.len() + self.args.len(),
            verb.len() + script.len() + 8 + keys + args,
        );
        cmd.arg(verb).arg(script).arg(self.keys.len());
        for key in self.keys {
            cmd.arg(*key);
        }
        for arg in self.args {
            cmd.arg(*arg);
        }
        cmd
    }
}

/// May run when the server has no memory left: what it does frees some, or keeps what is promised already.
const WHEN_FULL: &str = "#!lua flags=allow-oom\n";

/// Runs only while there is memory to be had.
const NOT_WHEN_FULL: &str = "";

/// All scripts of a backend.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// For a claim that has no place yet.
    pub(crate) turn: Script,
    /// For one that stands in line.
    pub(crate) turn_again: Script,
    pub(crate) turns: Script,
    pub(crate) leave: Script,
    pub(crate) leaves: Script,
    pub(crate) renew: Script,
    pub(crate) linger: Script,
    pub(crate) raise: Script,
    pub(crate) lower: Script,
    pub(crate) break_lock: Script,
    pub(crate) show: Script,
    pub(crate) memo: Script,
}

impl Scripts {
    pub(crate) fn new(cluster: bool) -> Self {
        let turn = include_str!("scripts/turn.lua");
        let script = |header, text| Script::new(header, text, cluster);
        Scripts {
            turn: script(NOT_WHEN_FULL, turn),
            turn_again: script(WHEN_FULL, turn),
            turns: script(NOT_WHEN_FULL, include_str!("scripts/turns.lua")),
            leave: script(WHEN_FULL, include_str!("scripts/leave.lua")),
            leaves: script(WHEN_FULL, include_str!("scripts/leaves.lua")),
            renew: script(WHEN_FULL, include_str!("scripts/renew.lua")),
            linger: script(WHEN_FULL, include_str!("scripts/linger.lua")),
            raise: script(WHEN_FULL, include_str!("scripts/raise.lua")),
            lower: script(WHEN_FULL, include_str!("scripts/lower.lua")),
            break_lock: script(WHEN_FULL, include_str!("scripts/break.lua")),
            show: script(NOT_WHEN_FULL, include_str!("scripts/show.lua")),
            memo: script(NOT_WHEN_FULL, include_str!("scripts/memo.lua")),
        }
    }
}
