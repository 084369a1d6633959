//! The scripts: one per verb, built once per backend, called by hash and sent whole when the server lacks them.

use redis::Cmd;

const ROOM: &str = include_str!("scripts/room.lua");

/// A script and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
}

impl Script {
    /// `cluster` says to wake by sharded channels, which live in the lock's own slot.
    fn new(text: &str, cluster: bool) -> Self {
        let mut text = text.replace("--@room", ROOM);
        if cluster {
            text = text
                .replace("'PUBLISH'", "'SPUBLISH'")
                .replace("--@channel", ".. string.sub(main, brace, brace + 3) .. ':'");
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

/// All scripts of a backend.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) turn: Script,
    pub(crate) turns: Script,
    pub(crate) leave: Script,
    pub(crate) leaves: Script,
    pub(crate) renew: Script,
    pub(crate) raise: Script,
    pub(crate) break_lock: Script,
    pub(crate) show: Script,
}

impl Scripts {
    pub(crate) fn new(cluster: bool) -> Self {
        Scripts {
            turn: Script::new(include_str!("scripts/turn.lua"), cluster),
            turns: Script::new(include_str!("scripts/turns.lua"), cluster),
            leave: Script::new(include_str!("scripts/leave.lua"), cluster),
            leaves: Script::new(include_str!("scripts/leaves.lua"), cluster),
            renew: Script::new(include_str!("scripts/renew.lua"), cluster),
            raise: Script::new(include_str!("scripts/raise.lua"), cluster),
            break_lock: Script::new(include_str!("scripts/break.lua"), cluster),
            show: Script::new(include_str!("scripts/show.lua"), cluster),
        }
    }
}
