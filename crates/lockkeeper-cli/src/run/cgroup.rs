//! A control group for the command, where one may be made: the kernel itself then knows everybody who comes from it.
//!
//! Only version 2 has what it takes, a file that kills all members at once (Linux 5.14). Who may make a group is
//! decided by the system: root may, and users where their session was delegated to them. Where it may not be made
//! the command's processes are found by their parents instead.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// Set to `off`, no group is made: for hosts on which something else wants to be alone with the groups.
const SWITCH: &str = "LOCKKEEPER_CGROUP";

/// A group that is ours.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Make a group below the one that we are in.
    pub(crate) fn make() -> Option<Self> {
        if std::env::var_os(SWITCH).is_some_and(|it| it == "off") {
            return None;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let ours = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = folder(&mounts, &ours)?.join(format!("lockkeeper-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let made = Cgroup(path);
        if made.0.join("cgroup.kill").exists() {
            return Some(made);
        }
        made.remove();
        None
    }

    /// One that another process of ours made.
    pub(crate) fn at(path: PathBuf) -> Self {
        Cgroup(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Put a process into it; what it starts from now on is in it too.
    pub(crate) fn add(&self, pid: Pid) -> std::io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.as_raw_pid().to_string())
    }

    /// Kill everybody in it.
    pub(crate) fn kill(&self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Who is in it. The dead who were not reaped are not.
    pub(crate) fn members(&self) -> Vec<Pid> {
        let listed = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        listed.split_whitespace().filter_map(|it| Pid::from_raw(it.parse().ok()?)).collect()
    }

    /// Remove the group. Whoever lives on in it goes back to where we are.
    pub(crate) fn remove(&self) {
        let parent = self.0.parent().map(|it| it.join("cgroup.procs"));
        for member in self.members() {
            if let Some(parent) = &parent {
                let _ = fs::write(parent, member.as_raw_pid().to_string());
            }
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// The folder of the group that we are in, from what `/proc` says about mounts and about us.
fn folder(mounts: &str, ours: &str) -> Option<PathBuf> {
    // 36 35 0:30 ROOT MOUNT-POINT options … - cgroup2 cgroup2 rw
    let (root, mount) = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut words = left.split(' ').skip(3);
        right.starts_with("cgroup2 ").then_some((words.next()?, words.next()?))
    })?;
    let path = ours.lines().find_map(|it| it.strip_prefix("0::"))?;
    let inside = Path::new(path).strip_prefix(root).ok()?;
    Some(Path::new(mount).join(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "35 1 0:28 / /sys rw - sysfs sysfs rw\n\
        36 35 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_own_group_is_found_below_the_mount() {
        let ours = "4:memory:/old\n0::/user.slice/session-1.scope\n";
        let expected = Path::new("/sys/fs/cgroup/user.slice/session-1.scope");
        assert_eq!(folder(MOUNTS, ours).as_deref(), Some(expected));
        assert_eq!(folder(MOUNTS, "0::/\n").as_deref(), Some(Path::new("/sys/fs/cgroup/")));
        assert_eq!(folder(MOUNTS, "4:memory:/old\n"), None);
        assert_eq!(folder("35 1 0:28 / /sys rw - sysfs sysfs rw\n", ours), None);
    }

    #[test]
    fn a_part_that_is_mounted_elsewhere_is_found_there() {
        let mounts = "36 35 0:30 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(folder(mounts, "0::/box/a\n").as_deref(), Some(Path::new("/sys/fs/cgroup/a")));
        assert_eq!(folder(mounts, "0::/elsewhere\n"), None, "it cannot be seen from here");
    }
}
