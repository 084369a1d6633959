//! The URLs of stores: what all backends read in the same way. For authors of backends.
//!
//! ```text
//! scheme://user:password@host:port,host/path?setting=value&setting=value
//! ```
//!
//! What is wrong is answered as a text that does not repeat the URL, which may hold a password. The backend adds what
//! a right one looks like.

use std::fmt;

/// What is wrong with a URL, in words without secrets.
pub type Wrong = String;

/// A URL in its parts.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::address::Wrong> {
/// use lockkeeper_core::address::{Address, Host, decoded, hosts};
///
/// let it = Address::read("redis://me:s%65same@one,two:6380/my%20db?timeout=1s")?;
/// assert_eq!((it.scheme, it.user.as_deref()), ("redis", Some("me")));
/// assert_eq!(hosts(it.hosts, 6379)?[1], Host { name: "two".into(), port: 6380 });
/// assert_eq!(decoded(it.path)?, "my db");
/// assert_eq!(it.query, "timeout=1s"); // for `kit::settings`
/// assert!(!format!("{it:?}").contains("sesame"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address<'u> {
    /// What stands before `://`.
    pub scheme: &'u str,
    /// The user, if one is named.
    pub user: Option<String>,
    /// The password, if there is a colon after the user.
    pub password: Option<Secret>,
    /// The hosts as they were written, for [`hosts`].
    pub hosts: &'u str,
    /// What stands after the first slash, as it was written, for [`decoded`].
    pub path: &'u str,
    /// What stands after `?`, as it was written, for [`Form::settings`](crate::kit::settings::Form::settings).
    pub query: &'u str,
}

/// Shows nothing of what stands after `?`: a setting may be a password.
impl fmt::Debug for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("scheme", &self.scheme)
            .field("user", &self.user)
            .field("password", &self.password)
            .field("hosts", &self.hosts)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<'u> Address<'u> {
    /// Take a URL apart.
    ///
    /// # Errors
    /// If it has no scheme, or user or password cannot be decoded.
    pub fn read(url: &'u str) -> Result<Self, Wrong> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no scheme")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').map_or((login, None), |it| (it.0, Some(it.1)));
        let user = Some(decoded(user)?).filter(|it| !it.is_empty());
        let password = password.map(decoded).transpose()?.map(Secret);
        Ok(Address { scheme, user, password, hosts, path, query })
    }
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address, without brackets.
    pub name: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            return write!(f, "[{}]:{}", self.name, self.port);
        }
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// The hosts of a list with commas; `port` is that of those who name none.
///
/// # Errors
/// If one is missing, has a bad port, or holds what no host has.
pub fn hosts(text: &str, port: u16) -> Result<Vec<Host>, Wrong> {
    text.split(',').map(|it| host(it, port)).collect()
}

fn host(text: &str, port: u16) -> Result<Host, Wrong> {
    let (name, after) = match text.strip_prefix('[') {
        Some(it) => it.split_once(']').ok_or("a bracket is not closed")?,
        None => text.find(':').map_or((text, ""), |at| text.split_at(at)),
    };
    let port = match after.strip_prefix(':') {
        Some(it) => it.parse().ok().filter(|it| *it != 0).ok_or("a port is not a number from 1 to 65535")?,
        None if after.is_empty() => port,
        None => return Err("after a bracket comes a colon and a port, or nothing".to_owned()),
    };
    let plain = |it: char| it.is_ascii_alphanumeric() || ".-_:".contains(it);
    if name.is_empty() || !name.chars().all(plain) {
        return Err("a host is missing or holds characters that no host has".to_owned());
    }
    Ok(Host { name: name.to_owned(), port })
}

/// The text with every `%XX` replaced by the byte it stands for.
///
/// # Errors
/// If two digits are missing, or the bytes are no UTF-8.
pub fn decoded(text: &str) -> Result<String, Wrong> {
    let wrong = "a % is not followed by two hexadecimal digits of UTF-8; write % as %25";
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).filter(|it| it.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|it| std::str::from_utf8(it).ok()).ok_or(wrong)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong)?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong.to_owned())
}

/// A text that is never shown.
///
/// ```
/// use lockkeeper_core::address::Secret;
///
/// let secret = Secret::new("sesame");
/// assert_eq!(format!("{secret:?}"), "***");
/// assert_eq!(secret.reveal(), "sesame");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hide a text.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The content of a file, without the end of its last line.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn from_file(file: &str) -> Result<Self, Wrong> {
        let text = std::fs::read_to_string(file)
            .map_err(|it| format!("the password file {file:?} cannot be read: {it}"))?;
        Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
    }

    /// The text, for the one who needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let address = Address::read("x+y://me:p%40s:s@one,[::1]:7/a/b?c=%C3%A9&d&&e=f=g").unwrap();
        assert_eq!((address.scheme, address.path), ("x+y", "a/b"));
        assert_eq!(address.user.as_deref(), Some("me"));
        assert_eq!(address.password.as_ref().unwrap().reveal(), "p@s:s");
        assert_eq!(address.query, "c=%C3%A9&d&&e=f=g");
        let shown: Vec<String> = hosts(address.hosts, 5).unwrap().iter().map(Host::to_string).collect();
        assert_eq!(shown, ["one:5", "[::1]:7"]);
        assert!(!format!("{address:?}").contains("p@s"));
        let plain = Address::read("x://h").unwrap();
        assert_eq!((plain.user, plain.password, plain.path), (None, None, ""));
        assert_eq!(Address::read("x://me@h").unwrap().password, None);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for bad in ["", "h,", "h:x", "h:0", "h:70000", "[::1", "[::1]x", "h h", ":1", "a/b"] {
            assert!(hosts(bad, 1).is_err(), "{bad}");
        }
        for bad in ["%", "%4", "%zz", "%+1", "%ff"] {
            assert!(decoded(bad).is_err(), "{bad}");
        }
        assert!(Address::read("nothing").is_err());
        assert!(Secret::from_file("/nonexistent/file").is_err());
    }
}
