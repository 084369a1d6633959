//! From a `redlock://` URL to a majority of Redis servers.

use std::time::Duration;

use lockkeeper_core::address::unknown_setting;
use lockkeeper_core::{Error, Result};
use lockkeeper_redis::Redis;
pub use lockkeeper_redlock::{Options, Redlock};

const FORM: &str = "redlock://[user:password@]host[:port],host,host[?node_timeout=50ms&restart_guard=1m|off]";

/// What may stand after the `?`: Redlock's own, then what every node is given.
const KNOWN: [&str; 11] = [
    "node_timeout",
    "restart_guard",
    "prefix",
    "timeout",
    "connect_timeout",
    "replicas",
    "replicas_timeout",
    "password_file",
    "ca",
    "cert",
    "key",
];

/// Connect to all nodes of a `redlock://` URL. What is not Redlock's own in the query goes to every node.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::Locker;
///
/// let nodes = lockkeeper::redlock::connect("redlock://one,two,three?restart_guard=1m").await?;
/// let locker = Locker::new(nodes);
/// let guard = locker.lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// Safe to drop; half-open connections are closed.
///
/// # Errors
/// [`Error::Invalid`] for a URL that cannot be read, [`Error::Unavailable`] if too few nodes answer.
pub async fn connect(url: &str) -> Result<Redlock<Redis>> {
    let (urls, options) = parse(url)?;
    let nodes = urls.iter().map(|it| Redis::lazy(lockkeeper_redis::Options::parse(it)?));
    Redlock::connect(nodes.collect::<Result<_>>()?, options).await
}

/// The URL of each node, and the options of the whole.
fn parse(url: &str) -> Result<(Vec<String>, Options)> {
    let bad = |what: &str| Error::invalid(format!("a redlock URL cannot be read: {what}; write {FORM}"));
    let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("`://` is missing"))?;
    let redis = if scheme == "redlocks" { "rediss" } else { "redis" };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (login, hosts) = match rest.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), rest),
    };
    if hosts.contains('/') {
        return Err(bad("nothing may follow the hosts but `?`"));
    }
    let (mut options, mut others) = (Options::default(), Vec::new());
    for pair in query.split('&').filter(|it| !it.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let span = || humantime::parse_duration(value).map_err(|_| bad(&format!("`{name}` is no duration")));
        options = match name {
            "node_timeout" => options.node_timeout(span()?),
            "restart_guard" if value == "off" => options.without_restart_guard(),
            "restart_guard" => options.restart_guard(span()?.max(Duration::from_millis(1))),
            _ if KNOWN.contains(&name) => {
                others.push(pair);
                options
            }
            _ => return Err(bad(&unknown_setting(name, &KNOWN))),
        };
    }
    let others = others.join("&");
    let query = if others.is_empty() { String::new() } else { format!("?{others}") };
    let urls = hosts.split(',').map(|host| format!("{redis}://{login}{host}{query}")).collect();
    Ok((urls, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_becomes_a_node_with_the_same_login_and_settings() {
        let (urls, _) = parse("redlock://u:p@a,b:2,c?node_timeout=20ms&prefix=x").unwrap();
        assert_eq!(urls, ["redis://u:p@a?prefix=x", "redis://u:p@b:2?prefix=x", "redis://u:p@c?prefix=x"]);
        let (urls, _) = parse("redlocks://a,b,c?restart_guard=off").unwrap();
        assert_eq!(urls, ["rediss://a", "rediss://b", "rediss://c"]);
    }

    #[test]
    fn a_misspelt_setting_is_answered_with_the_one_that_was_meant() {
        for (wrong, meant) in
            [("node_timeuot", "node_timeout"), ("restart_gaurd", "restart_guard"), ("prefx", "prefix")]
        {
            let said = parse(&format!("redlock://u:hunter2@a,b,c?{wrong}=5ms")).unwrap_err().to_string();
            assert!(
                said.contains(&format!("did you mean `{meant}`?")) && said.contains("redlock://"),
                "{said}"
            );
            assert!(!said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn what_every_node_is_given_is_known_to_it() {
        for name in &KNOWN[2..] {
            let value = if *name == "password_file" { "/dev/null" } else { "1s" };
            let scheme = if ["ca", "cert", "key"].contains(name) { "redlocks" } else { "redlock" };
            let (urls, _) = parse(&format!("{scheme}://a,b,c?{name}={value}")).unwrap();
            if let Err(error) = lockkeeper_redis::Options::parse(&urls[0]) {
                assert!(!error.to_string().contains("is unknown"), "{name}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn what_cannot_vote_is_refused_and_the_password_not_shown() {
        let urls = [
            "redlock://u:hunter2@a,b",
            "redlock://u:hunter2@a/0,b,c",
            "redlock://u:hunter2@a,b,c?node_timeout=x",
        ];
        for url in urls {
            let error = connect(url).await.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
