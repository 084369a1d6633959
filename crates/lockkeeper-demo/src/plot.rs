//! The plot: one bar per strategy, as long as it is fast, red where the books are wrong, and beneath it what an order costs.

use std::fmt::Write as _;

use crate::report::Report;

const LEFT: f64 = 130.0;
const WIDTH: f64 = 760.0;
const ROW: f64 = 48.0;
const TOP: f64 = 82.0;

/// What was sold, and where.
pub(crate) struct Caption<'a> {
    /// How many buyers, pieces and processes.
    pub(crate) size: &'a str,
    /// The URL of the locks; only its scheme is shown.
    pub(crate) locks: &'a str,
    /// The URL of the books; only its scheme is shown.
    pub(crate) books: &'a str,
}

/// The picture as SVG.
pub(crate) fn draw(reports: &[Report], caption: &Caption<'_>) -> String {
    let reports: Vec<&Report> = reports.iter().filter(|it| it.left_out.is_none()).collect();
    let fastest = reports.iter().map(|it| it.orders_per_second).fold(1.0, f64::max);
    let rows = f64::from(u32::try_from(reports.len()).unwrap_or(0));
    let height = TOP + ROW * rows + 12.0;
    let Caption { size, locks, books } = caption;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"18\" fill=\"#222\">Flash sale: orders per second</text>\n\
         <text x=\"16\" y=\"48\" font-size=\"12\" fill=\"#666\">{size}; locks: {}; books: {}</text>\n\
         <text x=\"16\" y=\"65\" font-size=\"12\" fill=\"#666\">red: sold what was not there, or lost a sale</text>\n",
        product(locks),
        product(books)
    );
    let mut y = TOP;
    for report in reports {
        let length = (report.orders_per_second / fastest * (WIDTH - LEFT - 180.0)).max(1.0);
        out.push_str(&bar(report, y, length));
        y += ROW;
    }
    out.push_str("</svg>\n");
    out
}

fn bar(report: &Report, y: f64, length: f64) -> String {
    let colour = if report.is_right() { "#2f7d4f" } else { "#b3261e" };
    let (name, speed) = (report.strategy.name(), report.orders_per_second);
    let note = if report.oversold > 0 { format!(", {} too many", report.oversold) } else { String::new() };
    let (middle, below, end) = (y + 17.0, y + 37.0, LEFT + length + 8.0);
    let mut out = String::new();
    let _ = write!(
        out,
        "<text x=\"{:.0}\" y=\"{middle:.0}\" font-size=\"13\" fill=\"#222\" text-anchor=\"end\">{name}</text>\n\
         <rect x=\"{LEFT:.0}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"24\" rx=\"3\" fill=\"{colour}\"/>\n\
         <text x=\"{end:.0}\" y=\"{middle:.0}\" font-size=\"13\" fill=\"#222\">{speed:.0}/s{note}</text>\n\
         <text x=\"{LEFT:.0}\" y=\"{below:.0}\" font-size=\"11\" fill=\"#666\">wait {:.0} ms; for each order {:.2} commands to \
         the locks, {:.2} statements to the books</text>\n",
        LEFT - 10.0,
        report.wait_p50_ms,
        report.lock_commands_per_order,
        report.db_statements_per_order
    );
    out
}

/// What a URL leads to, without its host: a picture is shown around.
fn product(url: &str) -> &'static str {
    match url.split_once(':').map_or("", |it| it.0) {
        "sqlite" => "SQLite",
        "redis" | "rediss" => "Redis",
        "redis+sentinel" | "rediss+sentinel" => "Redis with Sentinel",
        "redis+cluster" | "rediss+cluster" => "Redis Cluster",
        "redlock" | "redlocks" => "Redlock",
        "postgres" | "postgresql" => "PostgreSQL",
        "mysql" => "MySQL or MariaDB",
        "mariadb" => "MariaDB",
        "etcd" | "etcds" => "etcd",
        "zookeeper" | "zookeepers" => "ZooKeeper",
        _ => "another store",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Strategy;

    #[test]
    fn the_picture_says_where_and_what_an_order_cost_and_no_secret() {
        let mut report = Report::new(Strategy::Lockkeeper, 3);
        (report.lock_commands_per_order, report.wait_p50_ms) = (0.25, 12.0);
        let caption =
            Caption { size: "7 buyers", locks: "redis://:hunter2@h", books: "mysql://u:hunter2@h/<shop>" };
        let drawn = draw(&[report], &caption);
        for part in ["7 buyers; locks: Redis; books: MySQL or MariaDB", "wait 12 ms", "0.25 commands"] {
            assert!(drawn.contains(part), "{part}: {drawn}");
        }
        assert!(!drawn.contains("hunter2") && !drawn.contains("<shop>"), "{drawn}");
    }
}
