//! What the doctor of every dialect finds.

use lockkeeper_core::inspect::Finding;

/// Who can read and change what we say to the server. `cipher` is what the server says about our connection.
pub(crate) fn encryption(chosen: bool, cipher: &str, hosts: &[&str]) -> Finding {
    let local =
        |it: &&str| *it == "localhost" || *it == "::1" || it.starts_with("127.") || it.starts_with('/');
    if chosen {
        let what = format!("the connection is encrypted ({cipher}) and the server's certificate was checked");
        return Finding::fine(what, "nobody between can read or change what is sent");
    }
    let what = "the connection is not encrypted";
    if hosts.iter().all(local) {
        let consequence = "the server is on this host: what is said passes no network";
        return Finding::fine(what, consequence);
    }
    let consequence = "whoever sees the network sees the password and can release any lock";
    Finding::warning(what, consequence, "add `tls=on` to the URL, and `ca=FILE` if the authority is your own")
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::inspect::Severity;

    use super::*;

    #[test]
    fn a_plain_connection_over_a_network_is_warned_of() {
        let severity = |chosen, hosts: &[&str]| encryption(chosen, "", hosts).severity;
        assert_eq!(severity(false, &["127.0.0.1", "db.example"]), Severity::Warning);
        assert_eq!(severity(false, &["localhost", "/run/socket"]), Severity::Fine);
        assert_eq!(severity(true, &["db.example"]), Severity::Fine);
    }
}
