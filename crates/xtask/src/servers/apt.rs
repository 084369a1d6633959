//! Debian's own tool with a memory of its own: it asks the machine's mirror, and believes that nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};

use super::of;
use crate::shell;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// `apt-get` for one suite, in a folder of its own.
pub(super) struct Apt {
    settings: String,
    archives: PathBuf,
}

impl Apt {
    /// Read the lists of a suite.
    pub(super) fn of_suite(suite: &str, folder: &Path) -> Result<Self, String> {
        let folder = folder.join(suite);
        let archives = folder.join("archives");
        for path in [folder.join("lists/partial"), archives.join("partial")] {
            fs::create_dir_all(&path).map_err(|it| of(&path, &it))?;
        }
        let signed =
            if Path::new(KEYRING).is_file() { format!("[signed-by={KEYRING}] ") } else { String::new() };
        let sources = format!("deb {signed}{} {suite} main\n", mirror()?);
        // An empty table of what is installed: so the libraries come, too.
        let settings = settings(&folder, &archives);
        for (name, text) in [("sources.list", &*sources), ("status", ""), ("apt.conf", &settings)] {
            let file = folder.join(name);
            fs::write(&file, text).map_err(|it| of(&file, &it))?;
        }
        let apt = Apt { settings: folder.join("apt.conf").display().to_string(), archives };
        apt.run(&["update"]).map_err(|it| format!("the lists of Debian's {suite} cannot be read: {it}"))?;
        Ok(apt)
    }

    /// Load packages and all that they need. The files are returned.
    pub(super) fn download(&self, packages: &[&str]) -> Result<Vec<PathBuf>, String> {
        let install = [&["install", "--yes", "--download-only"], packages].concat();
        self.run(&install)?;
        // What lies there from an interrupted run may be older than this list, which names all, also what is there.
        let listed = [&["install", "--yes", "--print-uris"], packages].concat();
        let listed = self.without_archives(&listed)?;
        let files: Vec<PathBuf> = file_names(&listed).map(|it| self.archives.join(it)).collect();
        match files.iter().find(|it| !it.is_file()) {
            None if !files.is_empty() => Ok(files),
            None => Err(format!("apt-get names no files for {packages:?}")),
            Some(missing) => Err(format!("apt-get did not load {}", missing.display())),
        }
    }

    fn run(&self, args: &[&str]) -> Result<(), String> {
        // If we are killed it must not go on: the next run works in the same folder.
        let first = ["--pdeathsig", "KILL", "--", "apt-get", "-c", &self.settings, "-qq"];
        shell::step("apt-get", "setpriv", &[&first, args].concat())
    }

    fn without_archives(&self, args: &[&str]) -> Result<String, String> {
        let nowhere = self.archives.join("partial/none");
        let nowhere = format!("Dir::Cache::archives={}", nowhere.display());
        shell::output("apt-get", &[&["-c", &self.settings, "-qq", "-o", &nowhere], args].concat())
    }
}

fn settings(folder: &Path, archives: &Path) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let settings = [
        ("Dir::State", folder.display().to_string()),
        ("Dir::State::lists", at("lists")),
        ("Dir::State::status", at("status")),
        ("Dir::Cache", folder.display().to_string()),
        ("Dir::Cache::archives", archives.display().to_string()),
        ("Dir::Etc::sourcelist", at("sources.list")),
        // What the machine prefers is meant for its own release.
        ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
        ("Dir::Etc::preferences", "/dev/null".to_owned()),
        ("Dir::Etc::preferencesparts", "/dev/null".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        // A mirror may be old.
        ("Acquire::Check-Valid-Until", "false".to_owned()),
        ("Acquire::Retries", "3".to_owned()),
        ("APT::Install-Recommends", "false".to_owned()),
        // The folder is ours: neither its rights nor the system's locks concern anybody else.
        ("APT::Sandbox::User", "root".to_owned()),
        ("Debug::NoLocking", "true".to_owned()),
    ];
    let lines: Vec<String> = settings.iter().map(|(name, value)| format!("{name} \"{value}\";\n")).collect();
    lines.concat()
}

/// Where this machine gets its own release from.
fn mirror() -> Result<String, String> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|it| it.strip_prefix("VERSION_CODENAME=")).unwrap_or_default();
    let format = "$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)";
    let listed = shell::output("apt-get", &["indextargets", "--format", format])
        .map_err(|it| format!("this machine has no Debian packages: {it}"))?;
    mirror_of(&listed, name.trim_matches('"'))
        .map(str::to_owned)
        .ok_or_else(|| format!("apt knows no source of Debian's main section for this release ({name})"))
}

fn mirror_of<'a>(listed: &'a str, release: &str) -> Option<&'a str> {
    listed.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let ["Packages", name, "main", address] = words.as_slice() else { return None };
        (*name == release).then_some(*address)
    })
}

/// The files in a list of `--print-uris`: `'address' file size hash`.
fn file_names(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter(|it| it.starts_with('\'')).filter_map(|it| it.split(' ').nth(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_the_release_and_neither_of_its_security_nor_of_strangers() {
        let listed = "Packages nodistro main https://strangers.example/node/\n\
                      Packages bookworm-security main http://mirror.example/security/\n\
                      Translations bookworm main http://mirror.example/wrong/\n\
                      Packages bookworm contrib http://mirror.example/wrong/\n\
                      Packages bookworm main http://mirror.example/debian/\n";
        assert_eq!(mirror_of(listed, "bookworm"), Some("http://mirror.example/debian/"));
        assert_eq!(mirror_of(listed, "trixie"), None);
    }

    #[test]
    fn the_files_of_a_list_are_found() {
        let listed =
            "Reading package lists...\n'http://x/pool/a_1%3a2_amd64.deb' a_1%3a2_amd64.deb 10 MD5Sum:00\n";
        assert_eq!(file_names(listed).collect::<Vec<_>>(), ["a_1%3a2_amd64.deb"]);
    }
}
