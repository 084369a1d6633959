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
  lockkeeper show nightly-report                      one lock, and who waits
  LOCKKEEPER_URL=sqlite:/srv/locks.db lockkeeper ls   another store

Data goes to standard output, everything else to standard error.
`lockkeeper COMMAND --help` tells more and lists the exit codes.";

pub(crate) const RUN_USAGE: &str = "lockkeeper run [OPTIONS] NAME -- CMD [ARG]...";

pub(crate) const RUN: &str = "\
Examples:
  lockkeeper run nightly-report -- ./report.sh
  lockkeeper run --try import -- ./import.sh /data       skip if somebody is at it
  lockkeeper run --wait 30s --note 'release 1.4' deploy -- make deploy
  lockkeeper run --max-hold 10m backup -- sh -c 'dump | gzip > out.gz'
  lockkeeper run --name=-odd -- true                     a name that begins with a dash

The command sees:
  LOCKKEEPER_NAME    the lock's name
  LOCKKEEPER_FENCE   a number that grows with every holder; send it along with every
                     write, so that whatever you write to can refuse an older one

The command runs in a process group of its own, and signals are forwarded to that group.
If the lock cannot be kept, or --max-hold ends, the whole group gets TERM and then KILL,
before the store may give the lock to somebody else. If lockkeeper itself is killed, the
group is killed too. Processes that leave the group (daemons) are not followed, and
those that stay behind in the background when the command ends are left alone.

Exit codes:
  N     the command's own code; 128+S if signal S ended it
  64    bad usage: a name, option or URL that makes no sense
  69    the store cannot be used
  71    the system refused to start a process
  75    the lock was not obtained in time (--wait, --try)
  76    the lock was lost, or --max-hold ended; the command was stopped
  126   the command cannot be executed
  127   there is no such command

Spans are written `500ms`, `10s`, `1m 30s`, `2h`.";

pub(crate) const LS: &str = "\
Examples:
  lockkeeper ls                 every lock that is held or waited for
  lockkeeper ls orders/         those whose names begin with `orders/`
  lockkeeper ls --json | jq -r '.locks[].name'

Control characters and other characters that would garble a terminal are shown as \\u{1b}.
Exit codes: 0 listed (also if there is nothing), 64 bad usage, 69 the store cannot be used.";

pub(crate) const SHOW: &str = "\
Examples:
  lockkeeper show nightly-report
  lockkeeper show --json nightly-report | jq -r '.holders[0].note'
  lockkeeper show -- -odd       a name that begins with a dash

Exit codes: 0 shown (also if the lock is free), 64 bad usage, 69 the store cannot be used.";

pub(crate) const BREAK: &str = "\
Examples:
  lockkeeper break nightly-report
  lockkeeper break --yes nightly-report     do not ask

The lock goes to the next in line at once. The old holder finds out when it next renews,
after a third of its ttl; until then two may work at a time unless fences are checked.
On a terminal you are asked first.
Exit codes: 0 broken (also if nobody held it), 1 you said no, 64 bad usage,
69 the store cannot be used.";

pub(crate) const DOCTOR: &str = "\
Examples:
  lockkeeper doctor
  lockkeeper doctor --json | jq '.findings[] | select(.severity != \"fine\")'

Exit codes: 0 no danger found, 1 locks can be lost or given twice, 64 bad usage,
69 the store cannot be used.";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  lockkeeper completions bash > ~/.local/share/bash-completion/completions/lockkeeper
  lockkeeper completions zsh > ~/.zfunc/_lockkeeper
  lockkeeper completions fish > ~/.config/fish/completions/lockkeeper.fish";
