//! Where a fault is struck and where it is not, where a store promises nothing then, and what else should be known: the cells
//! of the page.

use crate::fault::Fault;
use crate::site::StoreName::{
    self, Cluster, Etcd, MariaDb, Mysql, Postgres, Redis, Redlock, Sentinel, Sqlite, ZooKeeper,
};

impl Fault {
    /// Whether there is something to break in this way.
    pub fn applies(self, store: StoreName) -> bool {
        let many = matches!(store, Etcd | ZooKeeper | Redlock);
        let told_where = matches!(store, Sentinel | Cluster);
        match self {
            Fault::Calm | Fault::ClientKill | Fault::ClientStop | Fault::Fork => true,
            // Redlock takes no ttl beyond its restart guard.
            Fault::CancelStorm | Fault::RuntimeDrop => store != Redlock,
            Fault::ServerStop => store != Sqlite,
            Fault::ServerForget => matches!(store, Redis | Redlock),
            Fault::Failover => matches!(store, Sentinel | Cluster | Etcd | ZooKeeper),
            Fault::LeaderParted | Fault::AllParted => matches!(store, Etcd | ZooKeeper),
            Fault::MinorityStop | Fault::MajorityStop | Fault::MajorityVanish => many,
            Fault::ServerKill
            | Fault::NetCut
            | Fault::NetDelay
            | Fault::HalfOpen
            | Fault::NetVanish
            | Fault::ClientCutOff
            | Fault::IdleDrop
            | Fault::NetDuplicate => store != Sqlite && !told_where,
            Fault::DiskFull => matches!(store, Redis | Redlock | Sentinel | Cluster | Etcd | Postgres),
            Fault::ClockForward | Fault::ClockBack | Fault::ClockStrobe => has_clock(store),
            Fault::ConnectionsFull => store == Redis,
        }
    }

    /// Why it is not struck on a store, and where else it is tested if it could happen there. Every cell of the page has a
    /// row or these words.
    pub fn left_out(self, store: StoreName) -> Option<&'static str> {
        if self.applies(store) {
            return None;
        }
        Some(match self {
            _ if store == Sqlite && !self.is_of_clock() && self != Fault::DiskFull => {
                "a file has no server and no network"
            }
            _ if self.is_of_clock() => no_clock(store),
            Fault::DiskFull => no_disk(store),
            Fault::CancelStorm => {
                "it takes no ttl beyond its restart guard, so that what was forgotten would be gone before it is looked for; cancellation at every step is a test of its own"
            }
            Fault::RuntimeDrop => {
                "what is left of calls that nobody awaits any more is looked for after its ttl would have let it go; tests of the store drop runtimes at every step"
            }
            Fault::LeaderParted | Fault::AllParted => not_parted(store),
            Fault::ConnectionsFull => match store {
                Etcd | ZooKeeper => "it has no limit that can be moved while it runs",
                Sentinel | Cluster | Redlock => "it is struck on one Redis server, whose client is the same",
                _ => {
                    "the workers may connect even to a full server, because they may look after it; a test of the store fills it up for another user"
                }
            },
            Fault::ServerForget => match store {
                Sentinel | Cluster => {
                    "a server that comes back empty is given everything by the one that leads meanwhile, which is failover"
                }
                _ if store.by_session() => "every restart forgets its sessions: server-kill",
                _ => "it keeps on disk what it confirmed, and one that has lost its disk is another server",
            },
            _ if matches!(store, Sentinel | Cluster) => self.not_of_many(),
            Fault::Failover if store == Redlock => "nobody leads",
            _ => "there is one server; tests of the SQL stores promote a replica",
        })
    }

    /// Why it is not struck where servers replace each other.
    fn not_of_many(self) -> &'static str {
        match self {
            Fault::ServerKill | Fault::MinorityStop => {
                "whoever is gone or stands still is replaced if it leads, which is failover, and is not missed otherwise"
            }
            Fault::MajorityStop => "those that are left do not lead, which is server-stop",
            _ => {
                "the servers tell their clients where to go, past any proxy; the tests of the store cut its connections one by one"
            }
        }
    }

    fn is_of_clock(self) -> bool {
        matches!(self, Fault::ClockForward | Fault::ClockBack | Fault::ClockStrobe)
    }

    /// What else does not hold on a store, and what is done about it here.
    pub(crate) fn remark(self, store: StoreName) -> Option<&'static str> {
        match (self, store) {
            (Fault::NetDuplicate, StoreName::Etcd | StoreName::ZooKeeper) => Some(
                "a take that arrives once more after its own release is granted to nobody, and on this store until its process takes the lock again or ends, because it hangs on the session of the process. So the processes are killed and replaced afterwards. TLS keeps others from repeating what was said",
            ),
            (Fault::NetDuplicate, it) if self.applies(it) && !it.by_session() => {
                Some("a take that arrives once more after its own release is granted to nobody for its ttl")
            }
            _ => None,
        }
    }

    /// Why two guards may be valid at once, if the store does not promise otherwise.
    pub fn unpromised(self, store: StoreName) -> Option<&'static str> {
        match (self, store) {
            (Fault::ServerForget, StoreName::Redis) => {
                Some("what a server forgot it gives again; `restart_guard` or an append-only file helps")
            }
            (Fault::Failover | Fault::ServerStop, StoreName::Sentinel | StoreName::Cluster) => {
                Some("a replica may not have been told of a grant when it takes over")
            }
            (Fault::NetCut, store) if store.by_session() => Some(
                "a lock ends with its connection, and its holder hears of it a moment after the next one has it",
            ),
            (Fault::ClockForward | Fault::ClockStrobe, store) if has_clock(store) => {
                Some("leases end early by as much as the clock jumps")
            }
            _ => None,
        }
    }
}

/// Whether its leases go by a wall clock that can be set here.
fn has_clock(store: StoreName) -> bool {
    matches!(store, Redis | Postgres | MariaDb | Mysql)
}

/// Why servers are not parted.
fn not_parted(store: StoreName) -> &'static str {
    match store {
        Sentinel | Cluster => {
            "they tell each other and their clients one address each, so that a gate between servers is one before clients, too; failover is what follows of it"
        }
        Redlock => "its servers know nothing of each other",
        _ => "there is one server",
    }
}

/// Why no clock is set.
fn no_clock(store: StoreName) -> &'static str {
    match store {
        Sqlite => "it goes by the kernel's boot clock, which nobody can set",
        Etcd | ZooKeeper => "its servers count leases by a clock that nobody can set, and fences by writes",
        Sentinel | Cluster | Redlock => {
            "the shim that steps the clock is set up for one server, which runs the same scripts; a test of the store gives a replica a slower clock"
        }
        _ => {
            "leases are the server's timeouts, by a clock that nobody can set; a test of the store lets fences run ahead of the clock"
        }
    }
}

/// Why no disk is filled.
fn no_disk(store: StoreName) -> &'static str {
    match store {
        Sqlite => {
            "the workers write the file themselves, and no limit for their files spares their histories; a test of the store fills it"
        }
        StoreName::PostgresSession => {
            "the locks lie in the server's memory, and fences are numbered in advance"
        }
        ZooKeeper => "a server that cannot write its log ends itself, which is server-kill",
        _ => {
            "a limit for its files hits the server's log first, and it ends itself, which is server-kill; a test of the store fills a tablespace, and that cannot be healed"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_a_row_of_the_page_or_words_that_say_why_it_is_none() {
        for fault in Fault::ALL {
            for store in StoreName::ALL {
                let words = fault.left_out(store);
                assert_eq!(fault.applies(store), words.is_none(), "{fault:?} on {store:?}");
            }
        }
    }
}
