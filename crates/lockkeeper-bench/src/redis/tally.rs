//! What the server counted, and what a process used.

use lockkeeper_servers::Redis;

use crate::Answer;

/// Count from zero.
pub(crate) async fn reset(server: &Redis) -> Answer<()> {
    server.command(&["CONFIG", "RESETSTAT"]).await?;
    Ok(())
}

/// Commands that clients sent since the last reset. What scripts call is not among them: our scripts call `SET`,
/// which only the others send themselves.
pub(crate) async fn sent(server: &Redis, name: &str) -> Answer<u64> {
    let stats = server.command(&["INFO", "commandstats"]).await?;
    let calls = |command: &str| {
        let line = stats.field(&format!("cmdstat_{command}")).unwrap_or_default();
        let calls = line.strip_prefix("calls=").and_then(|it| it.split(',').next());
        calls.and_then(|it| it.parse().ok()).unwrap_or(0)
    };
    let scripts: u64 = calls("evalsha") + calls("eval");
    Ok(scripts + if name == "ours" { 0 } else { calls("set") })
}

/// CPU time of a process so far, in seconds, from `/proc`.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |it| it.1);
    let fields: Vec<&str> = after_name.split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|it| it.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
