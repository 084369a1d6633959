//! MySQL itself, and the clock of both servers that speak its language.

use lockkeeper_servers::process::is_alive;
use lockkeeper_servers::{Flavour, KitError, Mysql, MysqlOptions, MysqlServer, MysqlServerOptions, flavour};

use crate::{drop_and_check, pid};

#[tokio::test]
async fn mysql_keeps_its_data_through_a_kill_and_a_stop() {
    let options = MysqlOptions::default().set("wait-timeout", "77");
    let server = Mysql::start(options).await.unwrap();
    assert!(server.url().starts_with("mysql://lockkeeper@127.0.0.1:"));
    let version = server.sql("SELECT version(), @@global.wait_timeout").await.unwrap();
    assert!(!version.contains("MariaDB") && version.ends_with("\t77"), "{version}");
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
async fn two_mysqls_run_side_by_side_and_one_pauses() {
    let start = || tokio::spawn(Mysql::start(MysqlOptions::default()));
    let (one, two) = (start(), start());
    let (one, two) = (one.await.unwrap().unwrap(), two.await.unwrap().unwrap());
    one.sql("CREATE TABLE only_here (id INT)").await.unwrap();
    assert_eq!(two.sql("SHOW TABLES").await.unwrap(), "");
    let uuid = async |it: &Mysql| it.sql("SELECT @@server_uuid").await.unwrap();
    assert_ne!(uuid(&one).await, uuid(&two).await, "each is a server of its own");
    one.pause().unwrap();
    two.sql("SELECT 1").await.unwrap();
    one.resume().unwrap();
    one.wait_ready().await.unwrap();
    drop_and_check((one, two), |(one, two)| vec![one, two]);
}

#[tokio::test]
async fn mysql_serves_tls_with_fresh_certificates() {
    let server = Mysql::start(MysqlOptions::default().tls()).await.unwrap();
    let files = server.tls().expect("it was asked for");
    let used = server.sql("SELECT @@global.ssl_cert, @@global.ssl_key").await.unwrap();
    assert_eq!(used, format!("{}\t{}", files.server_cert.display(), files.server_key.display()));
    let usable = server.sql(
        "SELECT VALUE FROM performance_schema.tls_channel_status \
                             WHERE CHANNEL = 'mysql_main' AND PROPERTY = 'Enabled'",
    );
    assert_eq!(usable.await.unwrap(), "Yes");
}

#[tokio::test]
async fn a_database_that_cannot_be_made_is_told_by_its_cause() {
    let options = MysqlOptions::default().create_with("innodb-data-home-dir", "/proc/nowhere");
    let error = Mysql::start(options).await.unwrap_err().to_string();
    assert!(error.contains("[ERROR]") && error.contains("/proc/nowhere"), "{error}");
}

/// Its clock is set ahead and back: it tells another time of day, and waits for as long as before.
async fn sets_its_clock<F: Flavour>() -> Result<(), KitError> {
    let server = MysqlServer::start(MysqlServerOptions::<F>::default().own_clock()).await?;
    let time = async || {
        let said = server.sql("SELECT UNIX_TIMESTAMP(NOW(6))").await?;
        said.parse::<f64>().map_err(|_| KitError::new(format!("{said:?} is no time")))
    };
    let before = time().await?;
    for (millis, least, most) in [(3_600_000, 3500.0, f64::MAX), (-3_600_000, f64::MIN, -3500.0)] {
        server.set_clock(millis)?;
        let ahead = time().await? - before;
        assert!(least < ahead && ahead < most, "{ahead}");
        // Its threads wait until a time of day; `sql` is not patient for long.
        assert_eq!(server.sql("SELECT SLEEP(0.2)").await?, "0");
    }
    Ok(())
}

#[tokio::test]
async fn the_clock_of_a_mysql_is_set_and_it_waits_no_longer_than_it_should() {
    sets_its_clock::<flavour::Mysql>().await.unwrap();
}

#[tokio::test]
async fn the_clock_of_a_mariadb_is_set_and_it_waits_no_longer_than_it_should() {
    sets_its_clock::<flavour::MariaDb>().await.unwrap();
}
