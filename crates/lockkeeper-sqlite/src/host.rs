//! What the host must be like for locks in a file: one boot, one clock, a local disk.

use std::fs;
use std::path::Path;

use crate::fault::{Result, Trouble};

/// The id of the running boot. Times of the boot clock mean nothing under another.
pub(crate) fn boot_id() -> Result<String> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    match fs::read_to_string(FILE) {
        Ok(id) if !id.trim().is_empty() => Ok(id.trim().to_owned()),
        Ok(_) => Err(Trouble::permanent(format!("{FILE} is empty; the boot must have an id"))),
        Err(error) => Err(Trouble::permanent(format!(
            "{FILE} cannot be read ({error}); locks in a file need Linux with /proc mounted"
        ))),
    }
}

/// Refuse a time namespace that shifts the boot clock: the host's other processes would judge our times wrongly.
pub(crate) fn check_clock() -> Result<()> {
    // Kernels without time namespaces have no such file, and no such danger.
    let Ok(offsets) = fs::read_to_string("/proc/self/timens_offsets") else {
        return Ok(());
    };
    if boot_clock_is_shifted(&offsets) {
        return Err(Trouble::permanent(
            "this process lives in a time namespace with a shifted boot clock; share the host's time namespace",
        ));
    }
    Ok(())
}

fn boot_clock_is_shifted(offsets: &str) -> bool {
    offsets
        .lines()
        .filter_map(|it| it.strip_prefix("boottime"))
        .any(|it| it.split_whitespace().any(|number| number != "0"))
}

/// File systems that other hosts may share, by `statfs` type.
const SHARED: [(u64, &str); 14] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
];

/// FUSE: may be local or not; the kernel does not say.
const FUSE: u64 = 0x6573_5546;

/// What kind of file system holds a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Local,
    /// Nobody knows.
    Fuse,
    /// Other hosts can mount it: their boots and clocks differ, and SQLite's shared memory does not reach them.
    Shared(&'static str),
}

/// The kind of file system that holds `path`.
pub(crate) fn disk_of(path: &Path) -> Disk {
    match rustix::fs::statfs(path) {
        // The type's width and sign differ between architectures; its lower 32 bits do not.
        #[expect(clippy::cast_sign_loss, reason = "only the bits count")]
        Ok(stat) => disk_of_type(stat.f_type as u64 & 0xffff_ffff),
        Err(_) => Disk::Local,
    }
}

fn disk_of_type(kind: u64) -> Disk {
    if kind == FUSE {
        return Disk::Fuse;
    }
    match SHARED.iter().find(|(it, _)| *it == kind) {
        Some((_, name)) => Disk::Shared(name),
        None => Disk::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_type() {
        assert_eq!(disk_of_type(0x6969), Disk::Shared("NFS"));
        assert_eq!(disk_of_type(0xff53_4d42), Disk::Shared("CIFS"));
        assert_eq!(disk_of_type(FUSE), Disk::Fuse);
        assert_eq!(disk_of_type(0xef53), Disk::Local);
        assert_eq!(disk_of(Path::new("/dev/shm")), Disk::Local);
    }

    #[test]
    fn a_shifted_boot_clock_is_noticed() {
        assert!(!boot_clock_is_shifted("monotonic  5 0\nboottime           0         0\n"));
        assert!(boot_clock_is_shifted("monotonic  0 0\nboottime     86400         0\n"));
    }

    #[test]
    fn the_boot_has_an_id_that_stays() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_eq!(boot_id().unwrap().len(), 36);
        check_clock().unwrap();
    }
}
