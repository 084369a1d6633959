//! The plot: one bar per strategy, as long as it is fast, red where the books are wrong.

use std::fmt::Write as _;

use crate::report::Report;

const LEFT: f64 = 130.0;
const WIDTH: f64 = 760.0;
const ROW: f64 = 38.0;
const TOP: f64 = 64.0;

/// The picture as SVG.
pub(crate) fn draw(reports: &[Report], title: &str) -> String {
    let reports: Vec<&Report> = reports.iter().filter(|it| it.left_out.is_none()).collect();
    let fastest = reports.iter().map(|it| it.orders_per_second).fold(1.0, f64::max);
    let rows = f64::from(u32::try_from(reports.len()).unwrap_or(0));
    let height = TOP + ROW * rows + 24.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"18\" fill=\"#222\">Flash sale: orders per second</text>\n\
         <text x=\"16\" y=\"48\" font-size=\"12\" fill=\"#666\">{title}; red: sold what was not there, or lost a sale</text>\n"
    );
    let mut y = TOP;
    for report in reports {
        let length = (report.orders_per_second / fastest * (WIDTH - LEFT - 180.0)).max(1.0);
        let colour = if report.is_right() { "#2f7d4f" } else { "#b3261e" };
        let (name, speed) = (report.strategy.name(), report.orders_per_second);
        let note =
            if report.oversold > 0 { format!(", {} too many", report.oversold) } else { String::new() };
        let (middle, end) = (y + 17.0, LEFT + length + 8.0);
        let _ = write!(
            out,
            "<text x=\"{:.0}\" y=\"{middle:.0}\" font-size=\"13\" fill=\"#222\" text-anchor=\"end\">{name}</text>\n\
             <rect x=\"{LEFT:.0}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"24\" rx=\"3\" fill=\"{colour}\"/>\n\
             <text x=\"{end:.0}\" y=\"{middle:.0}\" font-size=\"13\" fill=\"#222\">{speed:.0}/s{note}</text>\n",
            LEFT - 10.0
        );
        y += ROW;
    }
    out.push_str("</svg>\n");
    out
}
