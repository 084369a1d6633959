//! The parts of `--help` that teach: examples, exit codes, what the command sees.

pub(crate) const URL: &str = "\
Where the locks live: `sqlite:PATH`, or another store that this program was built with.
Without it: the file $XDG_STATE_HOME/lockkeeper/locks.db or, if that variable is not set,
~/.local/state/lockkeeper/locks.db. A URL with a password belongs into the environment
variable: every user of a machine can read command lines";

pub(crate) const CONFIG: &str = "\
A file of settings, the same one that programs with the library read: the store, ttl, wait
and more. Without it: `lockkeeper.toml` in the current folder, if there is one. Variables
such as LOCKKEEPER_TTL are stronger than the file, options are stronger than both";

/// Where the pages are read. An installed program has no folder of them.
pub(crate) const PAGES: &str = "https://github.com/lockkeeper/lockkeeper/blob/main/docs/";

/// Stores name pages as the repository has them: `docs/backends/redis.md`. Here they are named as everybody can read them.
pub(crate) fn with_pages(text: &str) -> String {
    let mut parts = text.split("docs/");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_page = ["backends/", "concepts/", "guides/"].iter().any(|it| part.starts_with(it));
        // What follows a slash or a letter is part of an address, or of a name of the user's.
        let begins = !out.ends_with(|it: char| it == '/' || it.is_alphanumeric());
        out.push_str(if is_page && begins { PAGES } else { "docs/" });
        out.push_str(part);
    }
    out
}

pub(crate) const JSON: &str = "\
Print JSON. Its shape: https://github.com/lockkeeper/lockkeeper/blob/main/docs/guides/command-line.md#json";

pub(crate) const CONFIG_CHECK: &str = "\
Examples:
  lockkeeper config check                         what this folder and its variables say
  lockkeeper --config /etc/shop.toml config check

Every key is checked, and every secret must be there. The store is not asked; `lockkeeper
doctor` does that. Exit codes: 0 all is well, 64 something is wrong.";

pub(crate) const CONFIG_SHOW: &str = "\
Examples:
  lockkeeper config show
  LOCKKEEPER_TTL=3s lockkeeper config show

Passwords are shown as ***. Exit codes: 0 shown, 64 something is wrong.";

pub(crate) const MAIN: &str = "\
Examples:
  lockkeeper run nightly-report -- ./report.sh        wait for the lock, then run
  lockkeeper run --try nightly-report -- ./report.sh  only if it is free
  lockkeeper ls                                       who holds what
  lockkeeper top                                      the same, live, most wanted first
  lockkeeper run --shared prices -- ./report.sh       beside other readers
  lockkeeper show nightly-report                      one lock, and who waits
  lockkeeper status -q nightly-report                 exit code 0 if it is free
  LOCKKEEPER_URL=sqlite:/srv/locks.db lockkeeper ls   another store

Data goes to standard output, everything else to standard error.
`lockkeeper COMMAND --help` tells more and lists the exit codes.";

pub(crate) const RUN_USAGE: &str = "lockkeeper run [OPTIONS] NAME -- CMD [ARG]...";

pub(crate) const RUN: &str = "\
Examples:
  lockkeeper run nightly-report -- ./report.sh
  lockkeeper run --try import -- ./import.sh /data       skip if somebody is at it
  lockkeeper run --wait 30s --note 'release 1.4' deploy -- make deploy
  lockkeeper run --at-least 30s poll -- ./poll.sh        not more often than every 30 s
  lockkeeper run --max-hold 10m backup -- sh -c 'dump | gzip > out.gz'
  lockkeeper run --name=-odd -- true                     a name that begins with a dash
  lockkeeper run -n import -c 'fetch | load'             as with flock: -n, -w SECONDS, -E, -s, -c

Side by side:
  lockkeeper run --shared prices -- ./report.sh          beside others that say --shared
  lockkeeper run prices -- ./update.sh                   alone: it waits for all of them
  lockkeeper run --permits 2/5 mail -- ./send.sh         two of the five that may be out
First come, first served: a --shared behind somebody who waits to be alone waits, too.

Several locks, all or none, without a deadlock:
  lockkeeper run from --also to -- ./transfer.sh         --shared and --permits are about
                                                         the first name only

The command sees:
  LOCKKEEPER_NAME    the lock's name
  LOCKKEEPER_FENCE   a number that grows with every holder; send it along with every
                     write, so that whatever you write to can refuse an older one. With
                     --shared and --permits it is larger than that of everybody alone
                     before and smaller than of everybody alone after; between those who
                     share it says nothing
  LOCKKEEPER_FENCES  with --also: a line for each lock, its fence, a blank, its name
  LOCKKEEPER_RUN     a mark by which what the command starts is found again

The command runs in a process group of its own, and signals are forwarded to that group.
If the lock cannot be kept, or --max-hold ends, the command and everybody who comes from it,
daemons too, get TERM and then KILL before the store may give the lock to somebody else. If
lockkeeper itself is killed, so are they. Those that stay behind in the background when the
command ends are left alone. LOCKKEEPER_CGROUP=off makes no control group for the command.

Exit codes:
  N     the command's own code; 128+S if signal S ended it
  64    bad usage: a name, option or URL that makes no sense, or --shared or --permits on a
        store that has one holder at a time (Redlock, session locks)
  69    the store cannot be used
  71    the system refused to start a process
  75    the lock was not obtained in time (--wait, --try); another code by -E
  76    the lock was lost, or --max-hold ended; the command was stopped
  126   the command cannot be executed
  127   there is no such command

Durations are written `500ms`, `10s`, `1m 30s`, `2h`.";

pub(crate) const ONCE_USAGE: &str = "lockkeeper once [OPTIONS] NAME TICK -- CMD [ARG]...";

pub(crate) const ONCE: &str = "\
Examples:
  lockkeeper once nightly $(date +%F) -- ./report.sh     in the crontab of every host
  lockkeeper once --wait 1h migrate v42 -- ./migrate.sh  wait until somebody has done it

The tick is a text that is the same on every host: a date, an hour, the number of a release.
One host runs the command. That it ended well is written down, so whoever comes later for
the same tick, also with a clock that is late, finds it done.

If the command fails, or its host dies, the tick is open again and the next one runs it.
Two ticks of one name never run at the same time.

Exit codes:
  0     it ran and ended well, or was done before
  N     it ran and failed with this code; the tick is open again
  75    another is at it (or was, to the end of --wait)
  64, 69, 71, 76, 126, 127    as for `lockkeeper run`

Works on every store but Redlock and session locks of PostgreSQL and MySQL.";

pub(crate) const ELECT_USAGE: &str = "lockkeeper elect [OPTIONS] NAME -- CMD [ARG]...";

pub(crate) const ELECT: &str = "\
Examples:
  lockkeeper elect scheduler -- ./scheduler
  lockkeeper elect --value 10.0.0.7:8080 index -- ./indexer
  lockkeeper leader scheduler                            who leads?

Waits until nobody else leads, runs the command, and tells everybody the value. If the lead
cannot be kept, the command and all that come from it are stopped before another leads, and
we stand again. When the command ends by itself, so does lockkeeper, with its code.

LOCKKEEPER_FENCE is the term: it grows from leader to leader. Send it along with every write,
so that whatever you write to can refuse a leader of the past.

Exit codes: as for `lockkeeper run`, but a loss is no end. 128+S if signal S came while waiting.

Works on every store but Redlock and session locks of PostgreSQL and MySQL.";

pub(crate) const LEADER: &str = "\
Examples:
  lockkeeper leader scheduler
  lockkeeper leader --json scheduler | jq -r .leader.value
  lockkeeper leader --watch scheduler                    a line for every change, and `vacant`

A leader that dies is seen to lead for at most one ttl more. This is for finding the leader,
not for safety: what you call may have ceased to lead when your call arrives.

Exit codes: 0 somebody leads, 75 nobody does, 64 bad usage, 69 the store cannot be used.";

#[cfg(feature = "serve")]
pub(crate) const SERVE: &str = "\
Examples:
  lockkeeper serve                                       look, but take nothing
  lockkeeper serve --allow locks --listen unix:/run/lockkeeper.sock --token-file /etc/lock-token

  curl -N -X POST -H \"Authorization: Bearer $TOKEN\" 'http://127.0.0.1:7765/v1/locks/orders%2F42?wait=3s'

The answer is a stream that is the lock: it begins when the lock is held, and closing it gives
the lock back. The rest: https://github.com/lockkeeper/lockkeeper/blob/main/docs/guides/serve.md
and, for programs, GET /openapi.json.

TERM and INT end it: those who hold are told, and what is held is given back.

Exit codes: 0 it was asked to end, 64 bad usage, 69 the store or the address cannot be used.";

pub(crate) const LS: &str = "\
Examples:
  lockkeeper ls                 every lock that is held or waited for
  lockkeeper ls orders/         those whose names begin with `orders/`
  lockkeeper ls --sort waiters  those that most wait for first; also held, valid, name
  lockkeeper ls --watch         again every second; see also `lockkeeper top`
  lockkeeper ls --json | jq -r '.locks[].name'

On a terminal the list is as wide as the window: a fence that does not fit is left out, and
long texts end with `…`. Elsewhere nothing is cut but notes, after 40 columns. --watch prints
an empty line after each look where there is no terminal, and with --json one object per
line. NO_COLOR=1 switches colours off.

KIND is how a lock is held: `lock` (alone), `reader`, `writer`, `2 of 5 permits`.
Control characters and other characters that would garble a terminal are shown as \\u{1b}.
Exit codes: 0 listed (also if there is nothing), 64 bad usage, 69 the store cannot be used.";

pub(crate) const TOP: &str = "\
Examples:
  lockkeeper top                     those that most wait for first, every second
  lockkeeper top orders/ --sort held those that are held longest, of one kind
  lockkeeper top --once | head       once, for a pipe or a ticket

Keys: q ends it, w h v n sort by waiters, held for, valid for, name.
While the store cannot be used the screen says so, and goes on when it can.
Exit codes: 0 ended, 64 bad usage, 69 the store cannot be used (when it begins, or --once),
128+S if signal S ended it.";

pub(crate) const SHOW: &str = "\
Examples:
  lockkeeper show nightly-report
  lockkeeper show --json nightly-report | jq -r '.holders[0].note'
  lockkeeper show -- -odd       a name that begins with a dash

Exit codes: 0 shown (also if the lock is free), 64 bad usage, 69 the store cannot be used.";

pub(crate) const STATUS: &str = "\
Examples:
  lockkeeper status nightly-report              prints `free` or by whom it is held
  lockkeeper status -q deploy && ./deploy.sh    only if nobody holds it right now

It looks and takes nothing: a moment later the answer may be another. To act on it, use `run --try`.
Exit codes: 0 free, 75 held or waited for, 64 bad usage, 69 the store cannot be used.";

pub(crate) const WAIT: &str = "\
Examples:
  lockkeeper wait migration                     until nobody holds it or waits for it
  lockkeeper wait -w 60 migration && ./start.sh

It looks at the lock again and again, takes no place in the queue, and takes nothing. To act alone, use `run`.
Exit codes: 0 it is free, 75 it was not within --wait, 64 bad usage, 69 the store cannot be used.";

pub(crate) const BREAK: &str = "\
Examples:
  lockkeeper break nightly-report
  lockkeeper break --yes nightly-report     do not ask
  lockkeeper break --fence 117899264000 nightly-report
                                            only the holder that was shown

The lock goes to the next in the queue at once. The old holder is notified; on MySQL, MariaDB
and Redlock it finds out when it next renews, after a third of its ttl. Until then two may work
at a time unless fences are checked.
On a terminal you are asked first.
Exit codes: 0 broken (also if nobody held it), 1 you said no, or nobody has that fence any more,
64 bad usage, 69 the store cannot be used.";

pub(crate) const DOCTOR: &str = "\
Examples:
  lockkeeper doctor
  lockkeeper doctor --all       also what is fine
  lockkeeper doctor --strict    fail for a warning, too: for gates of a deployment
  lockkeeper doctor --json | jq '.findings[] | select(.severity != \"fine\")'

What is wrong is told, the worst first; what is fine is counted. JSON has all of it.

A danger is so as things are now. A warning tells what a restart, a failover, a power cut or
a stranger may do; it does not change the code.
Exit codes: 0 no danger found, 1 a danger: locks can be lost, or held by two at
once, or cannot be obtained (with --strict also for a warning), 64 bad usage, 69 the store cannot be used.";

#[cfg(feature = "torture")]
pub(crate) const TORTURE: &str = "\
Examples:
  lockkeeper torture --url redis+sentinel://a,b,c/main
  lockkeeper torture --your-turn 5m --processes 8       while you run a failover
  lockkeeper torture --your-turn 0s                     only processes of ours are broken

Processes fight for locks whose names begin with `lockkeeper-torture-`, under a load that you
bound. Some are killed or stand still; then it is your turn, and you are told what is worth
breaking. Nothing stays in the store; it is looked through at the end. If you interrupt it,
what was held ends with its ttl.

The last line: G guards that were valid at once, E updates lost where nobody checks fences,
F updates lost although fences are checked, orphans left in the store, late news of a loss.
G, F, orphans and late must be 0, as far as the store promises it: see its page. E need not.

Exit codes: 0 every promise was kept, 1 one was broken, 64 bad usage, 69 the store cannot be
used.";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  lockkeeper completions bash > ~/.local/share/bash-completion/completions/lockkeeper
  lockkeeper completions zsh > ~/.zfunc/_lockkeeper
  lockkeeper completions fish > ~/.config/fish/completions/lockkeeper.fish

bash, zsh and fish also complete the names of locks that are held or waited for: they ask the
store that the line or LOCKKEEPER_URL names, for at most a second.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_named_as_everybody_can_read_it_and_nothing_else_is_changed() {
        let page = |it: &str| format!("{PAGES}{it}");
        for (text, shown) in [
            ("see docs/backends/redis.md", format!("see {}", page("backends/redis.md"))),
            (
                "docs/guides/a.md, docs/concepts/b.md",
                page(&format!("guides/a.md, {}", page("concepts/b.md"))),
            ),
            ("`docs/orders/42` is held", "`docs/orders/42` is held".to_owned()),
            ("/srv/docs/guides/x", "/srv/docs/guides/x".to_owned()),
            (&page("guides/a.md"), page("guides/a.md")),
            ("nothing", "nothing".to_owned()),
        ] {
            assert_eq!(with_pages(text), shown);
        }
    }
}
