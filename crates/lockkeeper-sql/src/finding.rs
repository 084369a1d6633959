//! A doctor's findings: one in one line, and those that every dialect has.

use lockkeeper_core::inspect::{Finding, Severity};

/// What was seen, what follows, what to do.
pub(crate) fn finding(
    severity: Severity,
    what: impl Into<String>,
    consequence: &str,
    remedy: &str,
) -> Finding {
    Finding::new(severity, what, consequence, remedy)
}

/// Who can read and change what we say to the server. `cipher` is what the server says about our connection.
pub(crate) fn encryption(chosen: bool, cipher: &str, hosts: &[&str]) -> Finding {
    let local =
        |it: &&str| *it == "localhost" || *it == "::1" || it.starts_with("127.") || it.starts_with('/');
    if chosen {
        let what = format!("the connection is encrypted ({cipher}) and the server's certificate was checked");
        return finding(Severity::Fine, what, "nobody on the network between can listen", "nothing to do");
    }
    let what = "the connection is not encrypted";
    if hosts.iter().all(local) {
        let consequence = "the server is on this host, where nobody can listen";
        return finding(Severity::Fine, what, consequence, "nothing to do");
    }
    let consequence = "whoever sees the network sees the password and can release any lock";
    finding(
        Severity::Warning,
        what,
        consequence,
        "add `tls=on` to the URL, and `ca=FILE` if the authority is your own",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_connection_over_a_network_is_warned_of() {
        let severity = |chosen, hosts: &[&str]| encryption(chosen, "", hosts).severity;
        assert_eq!(severity(false, &["127.0.0.1", "db.example"]), Severity::Warning);
        assert_eq!(severity(false, &["localhost", "/run/socket"]), Severity::Fine);
        assert_eq!(severity(true, &["db.example"]), Severity::Fine);
    }
}
