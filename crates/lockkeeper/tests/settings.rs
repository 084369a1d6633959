//! The URLs of all schemes: a misspelt setting is answered with the one that was meant, and no password is shown.

use lockkeeper::Error;

/// A scheme, whether it is built in, and where its settings begin.
const SCHEMES: &[(bool, &str)] = &[
    (cfg!(feature = "sqlite"), "sqlite:/nowhere/hunter2-is-no-secret-here.db"),
    (cfg!(feature = "redis"), "redis://me:hunter2@h"),
    (cfg!(feature = "redis"), "redis+sentinel://me:hunter2@h/service"),
    (cfg!(feature = "redis"), "redis+cluster://me:hunter2@h"),
    (cfg!(feature = "redlock"), "redlock://me:hunter2@a,b,c"),
    (cfg!(feature = "postgres"), "postgres://me:hunter2@h/db"),
    (cfg!(feature = "postgres"), "postgresql://me:hunter2@h/db"),
    (cfg!(feature = "mysql"), "mysql://me:hunter2@h/db"),
    (cfg!(feature = "mysql"), "mariadb://me:hunter2@h/db"),
    (cfg!(feature = "etcd"), "etcd://me:hunter2@h"),
    (cfg!(feature = "zookeeper"), "zookeeper://me:hunter2@h"),
];

/// What is written, what is meant, and the schemes that have it.
const SLIPS: &[(&str, &str, &[&str])] = &[
    ("timeuot", "timeout", &[""]),
    ("timout", "timeout", &[""]),
    ("conect_timeout", "connect_timeout", &["redis", "redlock", "postgres", "m", "etcd", "zookeeper"]),
    ("pasword_file", "password_file", &["redis", "redlock", "postgres", "m", "etcd", "zookeeper"]),
    ("tsl", "tls", &["redis", "redlock", "postgres", "m", "etcd", "zookeeper"]),
    ("durabilty", "durability", &["sqlite"]),
    ("clean_evry", "clean_every", &["sqlite", "postgres", "m"]),
    ("creat", "create", &["postgres", "m"]),
    ("schma", "schema", &["postgres"]),
    ("aplication_name", "application_name", &["postgres"]),
    ("prefx", "prefix", &["redis", "redlock"]),
    ("restart_gaurd", "restart_guard", &["redis", "redlock"]),
    ("node_timeuot", "node_timeout", &["redlock"]),
    ("sentinel_passwrod", "sentinel_password", &["redis+sentinel"]),
    ("sesion", "session", &["zookeeper"]),
    ("domian", "domain", &["etcd"]),
];

/// What the library says about a URL.
async fn said(url: &str) -> String {
    let error = lockkeeper::open(url).await.expect_err("it cannot be read");
    assert!(matches!(error, Error::Invalid { .. }), "{url}: {error:?}");
    assert!(url.starts_with("sqlite") || !format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    error.to_string()
}

fn built_in() -> impl Iterator<Item = &'static str> {
    SCHEMES.iter().filter(|it| it.0).map(|it| it.1)
}

#[tokio::test]
async fn a_misspelt_setting_is_answered_with_the_one_that_was_meant() {
    for base in built_in() {
        let slips = SLIPS.iter().filter(|it| it.2.iter().any(|scheme| base.starts_with(scheme)));
        for (slip, meant, _) in slips {
            let said = said(&format!("{base}?{slip}=hunter2")).await;
            assert!(said.contains(&format!("did you mean `{meant}`?")), "{base}: {said}");
            assert!(said.contains("known are ") && said.contains("timeout"), "{base}: {said}");
        }
        let stranger = said(&format!("{base}?colour=blue")).await;
        assert!(stranger.contains("`colour` is unknown; known are "), "{base}: {stranger}");
    }
}

#[tokio::test]
async fn a_setting_that_was_renamed_is_answered_with_its_new_name() {
    for (scheme, old) in [("sqlite", "busy_wait"), ("postgres", "answer_within"), ("m", "answer_within")] {
        for base in built_in().filter(|it| it.starts_with(scheme)) {
            let said = said(&format!("{base}?{old}=5s")).await;
            assert!(said.contains("it is called `timeout`"), "{base}: {said}");
        }
    }
}

#[tokio::test]
async fn no_password_is_shown_however_a_url_is_broken() {
    let networked = built_in().filter(|it| !it.starts_with("sqlite"));
    for base in networked {
        for wrong in
            ["?timeout=soon", "?timeout=0s", "?timeout=1s&timeout=2s", "?ca=/x", "?tls=prefer", "?x=%zz"]
        {
            said(&format!("{base}{wrong}")).await;
        }
        said(&format!("{base}?password_file=/dev/null")).await;
        // The password holds a question mark that was not escaped.
        let torn = base.replace("hunter2", "1?hunter2");
        said(&torn).await;
        said(&torn.replace("hunter2", "hunter2=hunter2")).await;
    }
}

#[cfg(all(feature = "config", feature = "sqlite"))]
#[tokio::test]
async fn what_a_file_says_of_warm_locks_is_so() {
    let folder = tempfile::tempdir().expect("a folder for the store");
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    for (words, stay) in [("", 0), ("warm = true", 5), ("warm = true\nwarm_max = 2", 2), ("warm_max = 2", 0)]
    {
        let text = format!("url = \"{url}\"\n{words}\n");
        let config = lockkeeper::config::Config::from_toml(&text, "x.toml").expect("it is well written");
        let locker = config.open().await.expect("a file can be opened").locker.build();
        for nth in 0..5 {
            let guard = locker.lock(format!("k/{nth}")).await.expect("it is free");
            guard.release().await.expect("it was held");
        }
        assert_eq!(locker.lines(), stay, "{words}");
        locker.shutdown(std::time::Duration::from_secs(10)).await.expect("the file is there");
    }
}
