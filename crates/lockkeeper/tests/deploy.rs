//! The files under `deploy/`: promtool accepts them, what they name exists, and a real Prometheus reads what we write.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::meters::{Kind, METERS, Meter, TWO_PHASE_METERS};
use lockkeeper::spi::{Clock, Memory};
use lockkeeper::{Locker, Meters};
use lockkeeper_servers::Port;

fn deploy(file: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy")).join(file)
}

fn text(file: &str) -> String {
    let path = deploy(file);
    std::fs::read_to_string(&path).unwrap_or_else(|it| panic!("{}: {it}", path.display()))
}

/// All names of samples that a meter has.
fn samples(meter: &Meter) -> Vec<String> {
    let name = meter.openmetrics_name();
    match meter.kind {
        Kind::Histogram => ["bucket", "count", "sum"].map(|it| format!("{name}_{it}")).into(),
        _ => vec![name],
    }
}

/// Every word of a text that looks like one of our metrics.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words.filter(|it| it.starts_with("lockkeeper_")).map(str::to_owned).collect()
}

#[test]
fn what_dashboards_and_alerts_name_exists() {
    let known: BTreeSet<String> = METERS.iter().chain(TWO_PHASE_METERS).flat_map(samples).collect();
    for file in ["grafana/lockkeeper.json", "prometheus/alerts.yaml", "prometheus/alerts_test.yaml"] {
        let named = named(&text(file));
        assert!(!named.is_empty(), "{file} names no metric");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} names what does not exist: {unknown:?}");
    }
}

#[test]
fn the_dashboard_shows_every_meter_and_is_json() {
    let text = text("grafana/lockkeeper.json");
    let named = named(&text);
    for meter in METERS.iter().chain(TWO_PHASE_METERS) {
        assert!(samples(meter).iter().any(|it| named.contains(it)), "{} is not shown", meter.name);
    }
    let board: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|it| it["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    for panel in panels {
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{panel}");
        assert!(!panel["targets"].as_array().unwrap().is_empty(), "{panel}");
    }
}

fn promtool(args: &[&str]) {
    let mut command = Command::new("promtool");
    let done = command.args(args).current_dir(deploy("prometheus")).output();
    let done = done.unwrap_or_else(|it| panic!("promtool: {it}; install it: apt-get install prometheus"));
    assert!(
        done.status.success(),
        "promtool {args:?}:\n{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn promtool_accepts_the_alerts_and_they_ring_when_they_must() {
    promtool(&["check", "rules", "alerts.yaml"]);
    promtool(&["test", "rules", "alerts_test.yaml"]);
}

/// Every query of the dashboard, as the rules of a file that promtool reads.
fn queries_as_rules() -> String {
    let board: serde_json::Value = serde_json::from_str(&text("grafana/lockkeeper.json")).unwrap();
    let targets = board["panels"].as_array().unwrap().iter().flat_map(|it| it["targets"].as_array().unwrap());
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    for (at, target) in targets.enumerate() {
        // What Grafana puts in before it asks.
        let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
        let query = query.replace("$job", ".+").replace("$store", ".+");
        assert!(!query.contains('$'), "a variable that nobody fills in: {query}");
        let query = serde_json::Value::from(query);
        writeln!(rules, "      - record: panel:{at}\n        expr: {query}").unwrap();
    }
    rules
}

#[test]
fn promtool_accepts_every_query_of_the_dashboard() {
    let folder = tempfile::tempdir().unwrap();
    let (file, rules) = (folder.path().join("rules.yaml"), queries_as_rules());
    assert!(10 < rules.matches("expr:").count(), "{rules}");
    std::fs::write(&file, rules).unwrap();
    promtool(&["check", "rules", &file.display().to_string()]);
}

/// A real Prometheus, killed with us.
struct Prometheus {
    child: Child,
    port: Port,
    folder: tempfile::TempDir,
}

impl Prometheus {
    fn scraping(target: &str) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), Port::claim().unwrap());
        let config = format!(
            "global: {{ scrape_interval: 1s }}\nscrape_configs:\n  - job_name: t\n    static_configs: [{{ targets: ['{target}'] }}]\nrule_files: ['{}']\n",
            deploy("prometheus/alerts.yaml").display()
        );
        std::fs::write(folder.path().join("config.yaml"), config).unwrap();
        let of_folder = |it: &str| folder.path().join(it).display().to_string();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "prometheus"])
            .arg(format!("--config.file={}", of_folder("config.yaml")))
            .arg(format!("--storage.tsdb.path={}", of_folder("data")))
            .arg(format!("--web.listen-address=127.0.0.1:{}", port.number()))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Prometheus { child, port, folder }
    }

    /// What it answers to a query; `None` while it does not answer.
    fn query(&self, query: &str) -> Option<serde_json::Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number())).ok()?;
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let answer: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        Some(answer["data"]["result"].clone())
    }

    /// The value of the only series of a query, when there is one.
    async fn value(&self, query: &str) -> String {
        for _ in 0..1_200 {
            if let Some(value) =
                self.query(query).and_then(|it| it[0]["value"][1].as_str().map(str::to_owned))
            {
                return value;
            }
            Clock::boot().sleep(Duration::from_millis(100)).await;
        }
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        panic!("Prometheus has no value of {query}:\n{log}");
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answer every scrape with what is counted now. The thread ends with the process.
fn serve(meters: Meters) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            // The request has no body and fits; what it says is known.
            let _ = stream.read(&mut [0; 4096]);
            let body = meters.openmetrics();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    address
}

#[tokio::test]
async fn a_real_prometheus_reads_our_text() {
    let meters = Meters::by_prefix('/');
    let builder = Locker::builder(Memory::default()).observer(meters.clone()).name("a\\\"b\nc");
    let locker = builder.build();
    for key in 0..7 {
        drop(locker.lock(format!("orders/{key}")).await.unwrap());
    }
    let _held = locker.lock("orders/7").await.unwrap();
    let prometheus = Prometheus::scraping(&serve(meters));
    // A text that it cannot read makes `up` zero.
    assert_eq!(prometheus.value("up%3D%3D1").await, "1");
    let held = prometheus.value("lockkeeper_held%7Bclass%3D%22orders%22%7D").await;
    assert_eq!(held, "1");
    let count = prometheus.value("sum(lockkeeper_hold_duration_seconds_count)").await;
    assert_eq!(count, "7");
    assert_eq!(prometheus.value("sum(lockkeeper_lost_total)").await, "0");
    let series = prometheus.query("lockkeeper_held%7Bclass%3D%22orders%22%7D").unwrap();
    assert_eq!(series[0]["metric"]["locker"], "a\\\"b\nc");
    assert_eq!(series[0]["metric"]["store"], "memory");
}
