//! What is read and what is refused.

use lockkeeper_core::Load;

use super::*;

const FULL: &str = r#"
system = "shop"
url = "redis://lock:hunter2@db/0"
ttl = "5s"
max_hold = "1m"
wait = "forever"
outage_max = "2s"
waiters_max = 5_00
depth_max = 3
hand_on_count_max = 0
hand_on_span_max = "20ms"
warm = true
warm_max = 7

[store]
timeout = "500ms"
pool_max = 8
sentinel_password = "hunter2"

[locks."mail"]
permits = "1/5"
"#;

fn variables(all: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
    all.iter().map(|(key, value)| (key.into(), value.into())).collect::<Vec<_>>().into_iter()
}

fn refused(text: &str) -> String {
    Config::from_toml(text, "x.toml").unwrap_err().to_string()
}

#[test]
fn every_key_is_read() {
    let config = Config::from_toml(FULL, "x.toml").unwrap();
    assert_eq!(config.system(), Some("shop"));
    assert_eq!((config.ttl(), config.wait()), (Some(Duration::from_secs(5)), Some(Duration::MAX)));
    assert_eq!(config.max_hold(), Some(Duration::from_secs(60)));
    assert_eq!(
        (config.waiters_max, config.depth_max, config.hand_on_count_max),
        (Some(500), Some(3), Some(0))
    );
    assert_eq!((config.warm, config.warm_max), (Some(true), Some(7)));
    assert!(refused("warm = \"yes\"").contains("write `true` or `false`"));
    let url = config.url().unwrap();
    assert_eq!(url, "redis://lock:hunter2@db/0?pool_max=8&sentinel_password=hunter2&timeout=500ms");
}

#[test]
fn a_variable_is_stronger_than_the_file() {
    let mut config = Config::from_toml(FULL, "x.toml").unwrap();
    let set = [
        ("LOCKKEEPER_TTL", "9s"),
        ("LOCKKEEPER_URL", "memory:"),
        ("LOCKKEEPER_SYSTEM", ""),
        ("LOCKKEEPER_FENCE", "7"),
        ("LOCKKEEPER_FENCES", "7 a\n8 b\n"),
        ("LOCKKEEPER_RUN", "4711-1f"),
        ("LOCKKEEPER_CGROUP", "off"),
        ("PATH", "/bin"),
    ];
    config.read_variables(variables(&set)).unwrap();
    assert_eq!((config.ttl(), config.system()), (Some(Duration::from_secs(9)), Some("shop")));
    assert_eq!(config.url().unwrap(), "memory:", "the file's options are those of another store");
    assert!(config.to_string().contains("ttl = \"9s\"  # LOCKKEEPER_TTL"), "{config}");
}

#[test]
fn a_url_can_stand_in_a_file_of_its_own() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sqlite:/x\n").unwrap();
    let mut config = Config::from_toml("url = \"memory:\"", "x.toml").unwrap();
    let path = file.path().to_str().unwrap();
    config.read_variables(variables(&[("LOCKKEEPER_URL_FILE", path)])).unwrap();
    assert_eq!(config.url().unwrap(), "sqlite:/x");
    assert!(!config.to_string().contains("memory:"), "{config}");
    assert!(refused("url = \"memory:\"\nurl_file = \"/x\"").contains("leave one out"));
    assert!(Config::default().url().unwrap_err().to_string().contains("LOCKKEEPER_URL"));
}

#[test]
fn nothing_that_is_shown_holds_a_secret() {
    let mut config = Config::from_toml(FULL, "x.toml").unwrap();
    for shown in [config.to_string(), format!("{config:?}"), format!("{config:#?}")] {
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("***@db"), "{shown}");
    }
    config.read_variables(variables(&[("LOCKKEEPER_URL", "redis://h?password=hunter2")])).unwrap();
    assert!(!config.to_string().contains("hunter2"), "{config}");
    // Not even where the file is broken.
    for text in ["url = \"redis://u:hunter2@h", "url = redis://u:hunter2@h", "url = [\"hunter2\"]"] {
        assert!(!refused(text).contains("hunter2"), "{}", refused(text));
    }
}

#[test]
fn what_is_shown_can_be_read_again() {
    let config = Config::from_toml(FULL, "x.toml").unwrap();
    let again = Config::from_toml(&config.to_string(), "y.toml").unwrap();
    assert_eq!(
        again.to_string().replace("y.toml", "x.toml").lines().count(),
        config.to_string().lines().count()
    );
    assert_eq!((again.ttl(), again.waiters_max), (config.ttl(), config.waiters_max));
    assert_eq!((again.share("mail"), config.share("mail")), (Some(Load::new(1, 5)), Some(Load::new(1, 5))));
}

#[test]
fn mistakes_are_named_with_their_line_and_a_suggestion() {
    for (text, said) in [
        ("\ntll = \"1s\"", "x.toml:2: there is no key `tll`; did you mean `ttl`?"),
        ("waiter_max = 1", "did you mean `waiters_max`?"),
        ("colour = 1", "there are `system`, `url`"),
        ("ttl = \"soon\"", "x.toml:1: `ttl` cannot be \"soon\""),
        ("ttl = 5", "write a duration such as"),
        ("ttl = \"0s\"", "greater than 0"),
        ("waiters_max = -1", "not negative"),
        ("waiters_max = 1.5", "`waiters_max` is a float"),
        ("system = \"a:b\"", "holds a `:`"),
        ("ttl = \"1s\"\nttl = \"2s\"", "x.toml:2: this is not TOML: duplicate key"),
        ("store = 5", "write `[store]`"),
        ("[store]\nx = \"a&b\"", "a URL cannot carry"),
        ("[tables]\nttl = \"1s\"", "x.toml:1: there is no key `tables`; there are "),
        ("[sotre]\ntimeout = \"1s\"", "did you mean `store`?"),
    ] {
        assert!(refused(text).contains(said), "{text:?}: {}", refused(text));
    }
    let mut config = Config::default();
    let error = config.read_variables(variables(&[("LOCKKEEPER_WIAT", "1s")])).unwrap_err().to_string();
    assert!(error.contains("did you mean `LOCKKEEPER_WAIT`?"), "{error}");
    let error = config.read_variables(variables(&[("LOCKKEEPER_TTL", "x")])).unwrap_err().to_string();
    assert!(error.starts_with("the variable LOCKKEEPER_TTL: `ttl` cannot be"), "{error}");
}
