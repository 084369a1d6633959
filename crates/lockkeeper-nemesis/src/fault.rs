//! The written list of faults: what each is called, and what it breaks in a sentence. `strike.rs` breaks and heals it.

/// One way to break something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is broken.
    Calm,
    /// A worker is killed, and another takes its place.
    ClientKill,
    /// A worker stands still for longer than its locks last.
    ClientStop,
    /// Everybody asks and goes away, at any point of the way.
    CancelStorm,
    /// The workers' runtimes are dropped in the middle of everything, and they go on in others.
    RuntimeDrop,
    /// Workers fork while they hold locks, and the forks end.
    Fork,
    /// A server is killed and started again with what it had saved.
    ServerKill,
    /// All servers stand still for longer than locks last.
    ServerStop,
    /// A server comes back without its memory.
    ServerForget,
    /// The one that leads is killed, and another takes over.
    Failover,
    /// A minority of the servers stands still.
    MinorityStop,
    /// A majority of the servers stands still.
    MajorityStop,
    /// All connections are cut, several times.
    NetCut,
    /// Everything that is said arrives late.
    NetDelay,
    /// What is asked arrives, what is answered does not, for longer than locks last.
    HalfOpen,
    /// A server is gone without a word, for longer than locks last.
    NetVanish,
    /// A majority of the servers is gone without a word, for everybody.
    MajorityVanish,
    /// The one that leads is parted from the other servers; clients reach all of them.
    LeaderParted,
    /// No server hears any other; clients reach all of them.
    AllParted,
    /// One worker hears everything late, and then nothing; the others go on.
    ClientCutOff,
    /// Quiet connections are forgotten by a firewall.
    IdleDrop,
    /// What was said on connections is said once more, later.
    NetDuplicate,
    /// The server's clock jumps ahead.
    ClockForward,
    /// The server's clock is set back.
    ClockBack,
    /// The server's clock jumps to and fro.
    ClockStrobe,
    /// The server ends all connections and takes no more.
    ConnectionsFull,
    /// The server can keep nothing new.
    DiskFull,
}

impl Fault {
    /// The whole list.
    pub const ALL: [Fault; 27] = [
        Fault::Calm,
        Fault::ClientKill,
        Fault::ClientStop,
        Fault::CancelStorm,
        Fault::RuntimeDrop,
        Fault::Fork,
        Fault::ServerKill,
        Fault::ServerStop,
        Fault::ServerForget,
        Fault::Failover,
        Fault::MinorityStop,
        Fault::MajorityStop,
        Fault::NetCut,
        Fault::NetDelay,
        Fault::HalfOpen,
        Fault::NetVanish,
        Fault::MajorityVanish,
        Fault::LeaderParted,
        Fault::AllParted,
        Fault::ClientCutOff,
        Fault::IdleDrop,
        Fault::NetDuplicate,
        Fault::ClockForward,
        Fault::ClockBack,
        Fault::ClockStrobe,
        Fault::ConnectionsFull,
        Fault::DiskFull,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Calm => "calm",
            Fault::ClientKill => "client-kill",
            Fault::ClientStop => "client-stop",
            Fault::CancelStorm => "cancel-storm",
            Fault::RuntimeDrop => "runtime-drop",
            Fault::Fork => "fork",
            Fault::ServerKill => "server-kill",
            Fault::ServerStop => "server-stop",
            Fault::ServerForget => "server-forget",
            Fault::Failover => "failover",
            Fault::MinorityStop => "minority-stop",
            Fault::MajorityStop => "majority-stop",
            Fault::NetCut => "net-cut",
            Fault::NetDelay => "net-delay",
            Fault::HalfOpen => "half-open",
            Fault::NetVanish => "net-vanish",
            Fault::MajorityVanish => "majority-vanish",
            Fault::LeaderParted => "leader-parted",
            Fault::AllParted => "all-parted",
            Fault::ClientCutOff => "client-cut-off",
            Fault::IdleDrop => "idle-drop",
            Fault::NetDuplicate => "net-duplicate",
            Fault::ClockForward => "clock-forward",
            Fault::ClockBack => "clock-back",
            Fault::ClockStrobe => "clock-strobe",
            Fault::ConnectionsFull => "connections-full",
            Fault::DiskFull => "disk-full",
        }
    }

    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Fault::Calm => "nothing is broken",
            Fault::ClientKill => "a process is killed (SIGKILL), another takes its place",
            Fault::ClientStop => "a process stands still (SIGSTOP) for twice its ttl",
            Fault::CancelStorm => {
                "everybody asks and goes away at any point of the way, with a ttl of two minutes"
            }
            Fault::RuntimeDrop => {
                "the runtimes of all processes are dropped in the middle of calls and holds, twice at work and twice in such a storm, and each goes on in another"
            }
            Fault::Fork => {
                "processes fork while they hold locks, ten times in one and a half ttl, and the forks end"
            }
            Fault::ServerKill => "a server is killed (SIGKILL) and started again with what it had saved",
            Fault::ServerStop => "all servers stand still for one and a half ttl",
            Fault::ServerForget => "a server is restarted without its memory",
            Fault::Failover => "the one that leads is killed, another takes over, the old one comes back",
            Fault::MinorityStop => "a minority of the servers stands still for one and a half ttl",
            Fault::MajorityStop => "a majority of the servers stands still for one and a half ttl",
            Fault::NetCut => "all connections are reset, five times in a second and a half",
            Fault::NetDelay => "everything that is said arrives up to 200 ms later",
            Fault::HalfOpen => {
                "requests arrive, answers to all processes but one are kept back: three times for most of a ttl, then for one and a half"
            }
            Fault::NetVanish => "a server swallows everything for one and a half ttl",
            Fault::MajorityVanish => {
                "a majority of the servers swallows everything that clients say, for one and a half ttl"
            }
            Fault::LeaderParted => {
                "the server that leads hears none of the others, nor they it, for one and a half ttl; clients reach all"
            }
            Fault::AllParted => "no server hears another for one and a half ttl; clients reach all",
            Fault::ClientCutOff => {
                "twice: one process alone hears everything up to 900 ms late for a ttl, then nothing for one and a half"
            }
            Fault::IdleDrop => "connections that were quiet for half a second are forgotten without a word",
            Fault::NetDuplicate => {
                "everybody connects anew, and twice all that was said since is said once more on connections of its own, which servers cannot tell from others"
            }
            Fault::ClockForward => "the server's clock jumps 20 s ahead",
            Fault::ClockBack => "the server's clock is set 5 s back",
            Fault::ClockStrobe => {
                "the server's clock jumps up to 3 s to and fro, ten times in one and a half ttl"
            }
            Fault::ConnectionsFull => {
                "the server ends all connections and takes no more for one and a half ttl"
            }
            Fault::DiskFull => {
                "the servers can keep nothing new for one and a half ttl: their memory (Redis), quota (etcd) or disk (PostgreSQL) is full"
            }
        }
    }

    /// The fault that is written so.
    pub fn named(name: &str) -> Option<Self> {
        Fault::ALL.into_iter().find(|it| it.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::StoreName;

    #[test]
    fn every_fault_and_every_store_is_found_by_its_name_and_applies_somewhere() {
        for fault in Fault::ALL {
            assert_eq!(Fault::named(fault.name()), Some(fault));
            assert!(StoreName::ALL.into_iter().any(|it| fault.applies(it)), "{fault:?}");
        }
        for store in StoreName::ALL {
            assert_eq!(StoreName::named(store.name()), Some(store));
        }
        assert!(Fault::named("x").is_none() && StoreName::named("x").is_none());
    }
}
