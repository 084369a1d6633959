//! What the `Containerfile` says: how the program is built, and what is in the last stage.

/// Where the first stage has the clone.
pub(super) const SOURCES: &str = "/src/";

#[derive(Debug)]
pub(super) struct Containerfile {
    /// The words behind `cargo`.
    pub(super) build: Vec<String>,
    /// Files of the first stage, and where each is in the image.
    pub(super) copied: Vec<(String, String)>,
    pub(super) user: String,
    pub(super) program: String,
}

impl Containerfile {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let said = |what: &str| format!("Containerfile: {what}");
        let (first, last) = text.rsplit_once("\nFROM ").ok_or_else(|| said("it has no second stage"))?;
        let (base, last) = last.split_once('\n').ok_or_else(|| said("its last stage is empty"))?;
        if base.trim() != "scratch" {
            return Err(said("its last stage does not begin with nothing: `FROM scratch`"));
        }
        let build = first.lines().find_map(|it| it.strip_prefix("RUN cargo "));
        let build = build.ok_or_else(|| said("nothing is built: `RUN cargo …`"))?;
        let (mut copied, mut user, mut program) = (Vec::new(), None, None);
        for line in last.lines().map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["COPY", "--from=build", from, to] => copied.push(((*from).to_owned(), (*to).to_owned())),
                ["USER", who] => user = Some((*who).to_owned()),
                ["ENTRYPOINT", what] => {
                    let what = what.strip_prefix("[\"").and_then(|it| it.strip_suffix("\"]"));
                    program = what.map(str::to_owned);
                }
                ["EXPOSE" | "STOPSIGNAL", _] => {}
                _ => return Err(said(&format!("`{line}` is not understood; teach `cargo xtask image`"))),
            }
        }
        Ok(Containerfile {
            build: build.split_whitespace().map(str::to_owned).collect(),
            copied,
            user: user.ok_or_else(|| said("its user is root: say `USER`"))?,
            program: program.ok_or_else(|| said("it starts nothing: `ENTRYPOINT [\"/PROGRAM\"]`"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "FROM rust AS build\nRUN cargo build --locked\n\nFROM scratch\nCOPY --from=build /src/target/x /x\n\
        USER 1:1\nENTRYPOINT [\"/x\"]\n";

    #[test]
    fn the_last_stage_is_read() {
        let file = Containerfile::parse(FILE).unwrap();
        assert_eq!(file.build, ["build", "--locked"]);
        assert_eq!(file.copied, [("/src/target/x".to_owned(), "/x".to_owned())]);
        assert_eq!((file.user.as_str(), file.program.as_str()), ("1:1", "/x"));
    }

    #[test]
    fn what_would_make_another_image_is_refused() {
        for (part, instead, told) in [
            ("FROM scratch", "FROM debian", "FROM scratch"),
            ("USER 1:1\n", "", "root"),
            ("USER 1:1", "USER 1:1\nRUN sh", "RUN sh"),
            ("ENTRYPOINT [\"/x\"]\n", "", "ENTRYPOINT"),
            ("RUN cargo build --locked", "", "RUN cargo"),
        ] {
            let error = Containerfile::parse(&FILE.replace(part, instead)).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
