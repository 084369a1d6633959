//! What the server counted, and a few sums.

use lockkeeper_testkit::servers::Redis;

use crate::Outcome;

/// Commands that clients sent since the last call. What scripts call is not among them.
pub(crate) async fn commands(server: &Redis) -> Outcome<u64> {
    let stats = server.command(&["INFO", "commandstats"]).await?.text();
    let mut sent = 0;
    let scripts = stats.contains("cmdstat_evalsha:") || stats.contains("cmdstat_eval:");
    for line in stats.lines().filter_map(|it| it.strip_prefix("cmdstat_")) {
        let Some((name, rest)) = line.split_once(':') else {
            continue;
        };
        let calls: u64 =
            rest.strip_prefix("calls=").and_then(|it| it.split(',').next()?.parse().ok()).unwrap_or(0);
        let direct = matches!(name, "evalsha" | "eval" | "subscribe" | "ping" | "wait");
        // `SET` is sent by rivals and by nobody else; within a run they are measured apart.
        if direct || !scripts {
            sent += calls;
        }
    }
    server.command(&["CONFIG", "RESETSTAT"]).await?;
    Ok(sent)
}

/// Calls of one command since the last reset.
pub(crate) async fn calls(server: &Redis, name: &str) -> Outcome<u64> {
    let stats = server.command(&["INFO", "commandstats"]).await?;
    let line = stats.field(&format!("cmdstat_{name}")).unwrap_or_default();
    let calls = line.strip_prefix("calls=").and_then(|it| it.split(',').next());
    Ok(calls.and_then(|it| it.parse().ok()).unwrap_or(0))
}

/// How long the server spent on each script since the last reset, in microseconds.
pub(crate) async fn script_micros(server: &Redis) -> Outcome<f64> {
    let stats = server.command(&["INFO", "commandstats"]).await?;
    let line = stats.field("cmdstat_evalsha").unwrap_or_default();
    let micros = line.split(',').find_map(|it| it.strip_prefix("usec_per_call="));
    Ok(micros.and_then(|it| it.parse().ok()).unwrap_or(0.0))
}

/// Jain's index: 1 if all are served alike, 1/n if one gets everything.
#[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
pub(crate) fn jain(counts: &[u64]) -> f64 {
    let (sum, squares) = counts.iter().fold((0.0, 0.0), |(sum, squares), it| {
        let it = *it as f64;
        (sum + it, squares + it * it)
    });
    if squares == 0.0 {
        return 0.0;
    }
    sum * sum / (counts.len() as f64 * squares)
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Rate of `count` things in `span`.
#[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
pub(crate) fn rate(count: u64, span: std::time::Duration) -> f64 {
    count as f64 / span.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
pub(crate) fn per(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}

/// CPU time of a process so far, in seconds, from `/proc`.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |it| it.1);
    let fields: Vec<&str> = after_name.split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|it| it.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
