//! quick
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::pedantic, missing_docs)]
use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::*;
use std::sync::Arc;
use std::time::Duration;

fn claim(name: &str, label: &Arc<Label>) -> Claim {
    Claim { key: Key::new(name).unwrap(), id: ClaimId::random().unwrap(), ttl: Duration::from_secs(10), weight: 1, capacity: 1, patient: true, label: label.clone() }
}

async fn bare(mut con: redis::aio::MultiplexedConnection, script: Arc<redis::Script>, name: String, n: usize) {
    for i in 0..n {
        let id = format!("{:032x}", i);
        let _: Option<String> = redis::cmd("SET").arg(&name).arg(&id).arg("NX").arg("PX").arg(10000).query_async(&mut con).await.unwrap();
        let _: i64 = script.key(&name).arg(&id).invoke_async(&mut con).await.unwrap();
    }
}
async fn ours(r: lockkeeper_redis::Redis, name: String, n: usize, label: Arc<Label>) {
    for _ in 0..n {
        let mut p = r.enter(claim(&name, &label));
        assert!(matches!(p.turn().await.unwrap(), Turn::Held(_)));
        p.leave().await.unwrap();
    }
}
async fn locker(l: Locker, name: String, n: usize) {
    for _ in 0..n {
        let g = l.lock(&name).await.unwrap();
        g.release().await.unwrap();
    }
}
async fn timed<F: Future<Output = ()> + Send + 'static>(what: &str, tasks: usize, n: usize, f: impl Fn(String, usize) -> F) -> f64 {
    let clock = Clock::boot();
    let t = clock.now();
    let hs: Vec<_> = (0..tasks).map(|i| tokio::spawn(f(format!("key-{i}"), n / tasks))).collect();
    for h in hs { h.await.unwrap(); }
    let d = clock.now() - t;
    let rate = n as f64 / d.as_secs_f64();
    println!("{what:24} {tasks:5} tasks {rate:9.0} cycles/s");
    rate
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = lockkeeper_testkit::servers::Redis::start(Default::default()).await.unwrap();
    let url = server.url();
    let info: redis::ConnectionInfo = redis::IntoConnectionInfo::into_connection_info(url.as_str()).unwrap();
    let info = info.set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
    let client = redis::Client::open(info).unwrap();
    let cfg = redis::AsyncConnectionConfig::new().set_pipeline_buffer_size(4096);
    let con = client.get_multiplexed_async_connection_with_config(&cfg).await.unwrap();
    let script = Arc::new(redis::Script::new("if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"));
    let r = lockkeeper_redis::Redis::connect(&url).await.unwrap();
    let l = Locker::new(r.clone());
    let label = Arc::new(Label::of_this_process());
    for _ in 0..3 {
        for (tasks, n) in [(1usize, 10000usize), (1000, 200000)] {
            timed("bare", tasks, n, |name, n| bare(con.clone(), script.clone(), name, n)).await;
            timed("ours place", tasks, n, |name, n| ours(r.clone(), name, n, label.clone())).await;
            timed("ours locker", tasks, n, |name, n| locker(l.clone(), name, n)).await;
        }
    }
    let s = server.command(&["INFO", "commandstats"]).await.unwrap().text();
    for line in s.lines() { println!("{line}"); }
}
