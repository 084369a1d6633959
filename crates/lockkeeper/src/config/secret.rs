//! Secrets: where they come from, and how they stay out of everything that is shown.

use std::fmt::Write as _;
use std::path::Path;

use lockkeeper_core::{Error, Result};

const MASK: &str = "***";

/// The text of a file without the line break at its end.
pub(super) fn from_file(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path)
        .map_err(|it| Error::invalid(format!("the file `{}` cannot be read: {it}", path.display())))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// The URL with every `${NAME}` replaced by that variable and every `${file:PATH}` by what that file holds, escaped
/// so that no character of a password has a meaning in the URL.
pub(super) fn filled(url: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String> {
    let (mut out, mut rest) = (String::with_capacity(url.len()), url);
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let (name, after) =
            after.split_once('}').ok_or_else(|| Error::invalid("`url` holds a `${` without its `}`"))?;
        let value = match name.strip_prefix("file:") {
            Some(path) => from_file(Path::new(path))?,
            None => variable(name).ok_or_else(|| {
                Error::invalid(format!("`url` asks for the variable {name:?}, which is not set"))
            })?,
        };
        escape(&value, &mut out);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// The URL without what may be secret: everything up to the last `@` of the address, because a password may hold
/// an `@` that nobody escaped, and the values of options whose names speak of secrets.
pub(super) fn hidden(url: &str) -> String {
    let url = match url.split_once("://") {
        // Three slashes: a path on this machine, without a host and without a user.
        Some((scheme, rest)) if !rest.starts_with('/') => match rest.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://{MASK}@{host}"),
            None => url.to_owned(),
        },
        _ => url.to_owned(),
    };
    let mut out = String::with_capacity(url.len());
    for (index, part) in url.split_inclusive(['?', '&', ';']).enumerate() {
        match part.split_once('=').filter(|(key, _)| index > 0 && speaks_of_secrets(key)) {
            None => out.push_str(part),
            Some((key, value)) => {
                let end = value.rfind(['&', ';']).map_or("", |at| &value[at..]);
                let _ = write!(out, "{key}={MASK}{end}");
            }
        }
    }
    out
}

/// Whether the value of an option of this name is not for everybody's eyes. The path of a file is.
pub(super) fn speaks_of_secrets(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    !key.ends_with("_file")
        && ["pass", "pwd", "secret", "token", "auth", "cred"].iter().any(|it| key.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        (name == "PW").then(|| "p@ss/ü".into())
    }

    #[test]
    fn a_secret_is_filled_in_and_escaped() {
        let url = filled("redis://u:${PW}@h/0?x=$1", variable).unwrap();
        assert_eq!(url, "redis://u:p%40ss%2F%C3%BC@h/0?x=$1");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a b\n").unwrap();
        let url = filled(&format!("redis://:${{file:{}}}@h", file.path().display()), variable).unwrap();
        assert_eq!(url, "redis://:a%20b@h");
    }

    #[test]
    fn a_secret_that_is_not_there_is_an_error() {
        assert!(filled("redis://${NO}@h", variable).unwrap_err().to_string().contains("\"NO\""));
        assert!(filled("redis://${PW@h", variable).unwrap_err().to_string().contains("`}`"));
        assert!(filled("redis://${file:/no/such}@h", variable).unwrap_err().to_string().contains("/no/such"));
    }

    #[test]
    fn what_is_shown_holds_no_secret() {
        for (url, shown) in [
            ("redis://u:pw@h/0", "redis://***@h/0"),
            ("redis://u:p@w@h", "redis://***@h"),
            ("redlock:redis://u:pw@a,redis://u:pw@b", "redlock:redis://***@b"),
            ("postgres://h/d?password=pw&x=1", "postgres://h/d?password=***&x=1"),
            ("redis://h?password_file=/run/pw&token=pw", "redis://h?password_file=/run/pw&token=***"),
            ("sqlite:/a@b/x.db", "sqlite:/a@b/x.db"),
        ] {
            assert_eq!(hidden(url), shown);
        }
    }
}
