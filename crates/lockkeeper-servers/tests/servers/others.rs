//! MariaDB, PostgreSQL, PgBouncer, etcd and ZooKeeper.

use std::process::Command;
use std::time::Duration;

use lockkeeper_servers::process::{eventually, is_alive};
use lockkeeper_servers::{
    DEBIAN_PACKAGES, Daemon, Etcd, EtcdOptions, KitError, MariaDb, MariaDbOptions, PgBouncer,
    PgBouncerOptions, PoolMode, Postgres, PostgresOptions, ZooKeeper, ZooKeeperOptions,
};

use crate::{drop_and_check, pid};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn every_package_is_named_once() {
    let mut names = DEBIAN_PACKAGES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), DEBIAN_PACKAGES.len());
}

#[tokio::test]
async fn mariadb_keeps_its_data_through_a_kill_and_a_stop() {
    let options = MariaDbOptions::default().set("wait-timeout", "77");
    let server = MariaDb::start(options).await.unwrap();
    assert!(server.url().starts_with("mysql://lockkeeper@127.0.0.1:"));
    assert_eq!(server.sql("SELECT @@global.wait_timeout").await.unwrap(), "77");
    server.sql("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1), (2)").await.unwrap();
    let (port, old) = (server.port(), pid(&server));
    server.kill().unwrap();
    assert!(!is_alive(old));
    server.start().await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(server.sql("SELECT id FROM t ORDER BY id").await.unwrap(), "1\n2");
    assert_eq!(server.port(), port);
    let error = server.sql("SELECT nonsense").await.unwrap_err().to_string();
    assert!(error.contains("Unknown column"), "{error}");
    drop_and_check(server, |it| vec![it]);
}

#[tokio::test]
async fn a_mariadb_that_cannot_be_made_is_told_by_its_cause() {
    let options = MariaDbOptions::default().create_with("innodb-data-home-dir", "/proc/nowhere");
    let error = MariaDb::start(options).await.unwrap_err().to_string();
    assert!(error.contains("[ERROR]") && error.contains("/proc/nowhere"), "{error}");
    assert!(!error.contains("bug report"), "the advice of `mariadb-install-db` is of no use: {error}");
}

#[tokio::test]
async fn two_mariadbs_run_side_by_side() {
    let start = || tokio::spawn(MariaDb::start(MariaDbOptions::default()));
    let (one, two) = (start(), start());
    let (one, two) = (one.await.unwrap().unwrap(), two.await.unwrap().unwrap());
    one.sql("CREATE TABLE only_here (id INT)").await.unwrap();
    assert_eq!(two.sql("SHOW TABLES").await.unwrap(), "");
    drop_and_check((one, two), |(one, two)| vec![one, two]);
}

#[tokio::test]
async fn postgres_keeps_its_data_and_pauses_with_all_its_sessions() {
    let server =
        Postgres::start(PostgresOptions::default().set("max_prepared_transactions", "7")).await.unwrap();
    assert_eq!(server.sql("SHOW max_prepared_transactions").await.unwrap(), "7");
    server.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1), (2)").await.unwrap();
    let old = pid(&server);
    server.kill().unwrap();
    assert!(!is_alive(old));
    server.start().await.unwrap();
    assert_eq!(server.sql("SELECT count(*) FROM t").await.unwrap(), "2");

    server.pause().unwrap();
    let parent = pid(&server).to_string();
    let stopped = async || {
        let list = Command::new("ps").args(["-o", "stat=,args=", "--ppid", &parent]).output()?;
        let children = String::from_utf8_lossy(&list.stdout).into_owned();
        // A session that has ended waits there as a zombie until its parent runs again.
        let all = children.contains("checkpointer") && children.lines().all(|it| it.starts_with(['T', 'Z']));
        if all { Ok(()) } else { Err(KitError::new(children)) }
    };
    eventually(SOON, stopped).await.unwrap();
    server.resume().unwrap();
    assert_eq!(server.sql("SELECT 1").await.unwrap(), "1");
    drop_and_check(server, |it| vec![it]);
}

#[tokio::test]
async fn a_postgres_standby_follows_and_can_be_promoted() {
    let primary = Postgres::start(PostgresOptions::default().password("it's a secret@")).await.unwrap();
    assert!(primary.url().contains(":it%27s%20a%20secret%40@"));
    assert!(!format!("{primary:?}").contains("secret@"));
    let standby = primary.standby().await.unwrap();
    assert_eq!(standby.sql("SELECT pg_is_in_recovery()").await.unwrap(), "t");
    primary.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1)").await.unwrap();
    let followed = eventually(SOON, async || standby.sql("SELECT id FROM t").await);
    assert_eq!(followed.await.unwrap(), "1");
    assert!(standby.sql("INSERT INTO t VALUES (2)").await.unwrap_err().to_string().contains("read-only"));
    primary.kill().unwrap();
    standby.promote().await.unwrap();
    standby.sql("INSERT INTO t VALUES (2)").await.unwrap();
    assert!(standby.promote().await.is_err(), "it is no standby any more");
    drop_and_check(standby, |it| vec![it]);
}

#[tokio::test]
async fn pgbouncer_pools_before_a_postgres() {
    let (one, two) = tokio::join!(
        Postgres::start(PostgresOptions::default()),
        Postgres::start(PostgresOptions::default().password("it's"))
    );
    for (server, mode) in [(one.unwrap(), PoolMode::Transaction), (two.unwrap(), PoolMode::Session)] {
        let options = PgBouncerOptions::default().mode(mode).set("default_pool_size", "2");
        let pooler = PgBouncer::start(&server, options).await.unwrap();
        assert_ne!(pooler.port(), server.port());
        // The server itself sees a session that was opened through the pooler.
        let seen =
            "SELECT count(*) FROM pg_stat_activity WHERE client_port IS NOT NULL AND pid <> pg_backend_pid()";
        assert_eq!(server.sql(seen).await.unwrap(), "1", "{mode:?}");
        server.restart().await.unwrap();
        pooler.restart().await.unwrap();
        drop_and_check(pooler, |it| vec![it]);
    }
}

const PUT: &str = r#"{"key": "Zm9v", "value": "YmFy"}"#;
const GET: &str = r#"{"key": "Zm9v"}"#;

#[tokio::test]
async fn etcd_keeps_its_data_through_a_kill_and_runs_beside_another() {
    let (one, two) = tokio::join!(Etcd::start(EtcdOptions::default()), Etcd::start(EtcdOptions::default()));
    let (one, two) = (one.unwrap(), two.unwrap());
    one.post("/v3/kv/put", PUT).await.unwrap();
    one.kill().unwrap();
    assert!(one.post("/v3/kv/range", GET).await.is_err());
    one.start().await.unwrap();
    assert!(one.post("/v3/kv/range", GET).await.unwrap().contains("YmFy"));
    assert!(!two.post("/v3/kv/range", GET).await.unwrap().contains("YmFy"));
    two.pause().unwrap();
    two.resume().unwrap();
    two.wait_ready().await.unwrap();
    drop_and_check((one, two), |(one, two)| vec![one, two]);
}

#[tokio::test]
async fn three_etcds_survive_the_loss_of_their_leader() {
    let cluster = Etcd::cluster().await.unwrap();
    assert_eq!(cluster.urls().len(), 3);
    let old = cluster.leader().await.unwrap();
    old.post("/v3/kv/put", PUT).await.unwrap();
    old.kill().unwrap();
    let new = cluster.leader().await.unwrap();
    assert_ne!(new.port(), old.port());
    assert!(new.post("/v3/kv/range", GET).await.unwrap().contains("YmFy"));
    old.start().await.unwrap();
    drop_and_check(cluster, |it| it.nodes().iter().map(|it| -> &Daemon { it }).collect());
}

#[tokio::test]
async fn zookeeper_answers_words_and_comes_back() {
    let options = ZooKeeperOptions::default().set("maxSessionTimeout", "7000");
    let server = ZooKeeper::start(options).await.unwrap();
    assert!(server.word("conf").await.unwrap().contains("maxSessionTimeout=7000"));
    assert!(server.word("srvr").await.unwrap().contains("Mode: standalone"));
    server.kill().unwrap();
    assert!(server.word("srvr").await.is_err());
    server.start().await.unwrap();
    drop_and_check(server, |it| vec![it]);
}

#[tokio::test]
async fn three_zookeepers_survive_the_loss_of_their_leader() {
    let ensemble = ZooKeeper::ensemble().await.unwrap();
    assert_eq!(ensemble.url().matches("127.0.0.1:").count(), 3);
    let old = ensemble.leader().await.unwrap();
    old.kill().unwrap();
    let new = ensemble.leader().await.unwrap();
    assert_ne!(new.port(), old.port());
    old.start().await.unwrap();
    let follows = async || match old.word("srvr").await? {
        it if it.contains("Mode: follower") => Ok(()),
        it => Err(KitError::new(it)),
    };
    eventually(SOON, follows).await.unwrap();
    drop_and_check(ensemble, |it| it.nodes().iter().map(|it| -> &Daemon { it }).collect());
}
