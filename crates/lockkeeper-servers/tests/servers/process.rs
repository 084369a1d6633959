//! Child processes end with their owner, whatever way that ends.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper_servers::process::{Launch, eventually, find, is_alive};
use lockkeeper_servers::{KitError, MariaDb, MariaDbOptions, Postgres, PostgresOptions, Redis, RedisOptions};

const SOON: Duration = Duration::from_secs(10);

async fn gone(pid: u32) -> Result<(), KitError> {
    eventually(SOON, async || (!is_alive(pid)).then_some(()).ok_or_else(|| KitError::new("alive"))).await
}

#[test]
fn a_missing_program_is_an_error_that_names_the_package() {
    let error = find("no-such-server", "no-such-package").unwrap_err().to_string();
    assert!(error.contains("`no-such-server` is not installed"), "{error}");
    assert!(error.contains("apt-get install no-such-package"), "{error}");
}

#[tokio::test]
async fn a_program_that_fails_shows_the_end_of_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::new("sh", "dash", folder.path()).args(["-c", "echo to the log; exit 3"]);
    let error = launch.run(SOON).await.unwrap_err().to_string();
    assert!(error.contains("exit status: 3") && error.ends_with("to the log"), "{error}");
}

#[tokio::test]
async fn a_server_that_cannot_start_shows_the_end_of_its_log() {
    let options = RedisOptions::default().set("no-such-setting", "1");
    let error = Redis::start(options).await.unwrap_err().to_string();
    assert!(error.contains("Bad directive or wrong number of arguments"), "{error}");
}

#[tokio::test]
async fn a_process_that_ignores_the_request_is_killed_after_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 1; done";
    let launch = Launch::new("sh", "dash", folder.path()).args(["-c", stubborn]);
    let mut process = launch.spawn().unwrap();
    let ready = async || match process.log_tail(1).as_str() {
        "ready" => Ok(()),
        other => Err(KitError::new(other)),
    };
    eventually(SOON, ready).await.unwrap();
    let pid = process.pid();
    process.stop(Duration::from_millis(100)).await.unwrap();
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn dropping_a_process_kills_its_children_too() {
    let folder = tempfile::tempdir().unwrap();
    // `setsid` takes the grandchild out of the group, as postgres does.
    let family = "setsid sleep 300 & echo $!; wait";
    let launch = Launch::new("sh", "dash", folder.path()).args(["-c", family]);
    let process = launch.spawn().unwrap();
    let child =
        eventually(SOON, async || process.log_tail(1).parse().map_err(|_| KitError::new("no pid yet")));
    let child: u32 = child.await.unwrap();
    assert!(is_alive(child));
    drop(process);
    assert!(!is_alive(child), "what it shared with the next server may still be in use");
}

/// The name under which the test below starts its own binary again, to be killed.
const VICTIM: &str = "process::servers_die_with_a_test_that_is_killed";

#[tokio::test]
async fn servers_die_with_a_test_that_is_killed() {
    if std::env::var_os("LOCKKEEPER_KIT_VICTIM").is_some() {
        // Those that run as another user are the ones in which this breaks easily.
        let redis = Redis::start(RedisOptions::default()).await.unwrap();
        let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
        let mariadb = MariaDb::start(MariaDbOptions::default()).await.unwrap();
        for server in [&*redis, &*postgres, &*mariadb] {
            println!("pid {}", server.pid().unwrap());
        }
        postgres.pause().unwrap();
        println!("pid end");
        return std::future::pending().await;
    }
    let mut victim = Command::new(std::env::current_exe().unwrap());
    // What a killed process leaves on disk goes with this folder.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    victim.env("TMPDIR", folder.path()).env("LOCKKEEPER_KIT_VICTIM", "1");
    victim.args(["--exact", VICTIM, "--nocapture"]);
    let mut victim = victim.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The harness may print the test's name on the same line.
    let words = lines.filter_map(|it| Some(it.split_once("pid ")?.1.to_owned()));
    let pids: Vec<u32> = words.take_while(|it| it != "end").map(|it| it.parse().unwrap()).collect();
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!(pids.len(), 3);
    for pid in pids {
        gone(pid).await.unwrap();
    }
}
