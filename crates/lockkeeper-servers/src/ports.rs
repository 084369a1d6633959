//! Loopback ports that stay ours while a server is down, so that it can come back on the same one.
//!
//! The kernel's own choice (port 0) lies in the range from which outgoing connections are served: while a
//! server is down any client could take its port, and a client that keeps dialling the dead port could even
//! end up connected to itself. So ports come from below that range, each claimed by a lock on a file, which
//! the kernel drops when the claiming process ends.

use std::fs::{self, File, OpenOptions, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::FlockOperation;

use crate::process::KitError;

/// First port used. The bus port of a cluster node is 10,000 above its port, so no bus port is a port here.
const FIRST: u32 = 10_000;
const COUNT: u32 = 10_000;
/// Added to a cluster node's port to get the port of its bus.
pub(crate) const BUS_OFFSET: u16 = 10_000;

/// A loopback port that no other kit uses, in this process or another, until it is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: File,
}

impl Port {
    /// Claim a free port. The one 10,000 above it is free as well.
    ///
    /// # Errors
    /// If all ten thousand are taken, or `/tmp` cannot be written.
    pub fn claim() -> Result<Self, KitError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Not the folder of `TMPDIR`: it may differ between processes, and the ports do not.
        let folder = Path::new("/tmp/lockkeeper-ports");
        fs::create_dir_all(folder)?;
        // Best effort: another user's folder is fine if it is open to us.
        drop(fs::set_permissions(folder, Permissions::from_mode(0o1777)));
        let start = std::process::id().wrapping_mul(101);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let number = FIRST + start.wrapping_add(step) % COUNT;
            let Ok(number) = u16::try_from(number) else {
                continue;
            };
            let file = folder.join(number.to_string());
            let claim = OpenOptions::new().create(true).append(true).open(&file);
            // Another user's file can be locked without being written.
            let Ok(claim) = claim.or_else(|_| File::open(&file)) else {
                continue;
            };
            if rustix::fs::flock(&claim, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            if is_free(number) && is_free(number + BUS_OFFSET) {
                return Ok(Port { number, _claim: claim });
            }
        }
        Err(KitError::new(format!(
            "no free loopback port from {FIRST} to {}: are many servers left running?",
            FIRST + COUNT - 1
        )))
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_given_to_nobody_else() {
        let claimed: Vec<Port> = (0..50).map(|_| Port::claim().unwrap()).collect();
        let mut numbers: Vec<u16> = claimed.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), claimed.len());
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let port = Port::claim().unwrap();
        let number = port.number();
        drop(port);
        let _listener = TcpListener::bind(("127.0.0.1", number)).unwrap();
        assert!(!is_free(number));
    }
}
