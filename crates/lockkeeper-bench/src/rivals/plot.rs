//! The plots of a store: guards and hand-offs of the crowd, as bars on a logarithmic scale, since they differ by orders.

use std::fmt::Write as _;

use super::page::Sheet;

const LEFT: f64 = 290.0;
const WIDTH: f64 = 420.0;
const STEP: f64 = 24.0;
/// A bar ends here: ten million a second.
const DECADES: f64 = 7.0;

pub(super) fn draw(sheet: &Sheet) -> String {
    let (mut bars, mut y) = (String::new(), 64.0);
    let all: Vec<_> = sheet.bars().collect();
    let guards: Vec<_> = all.iter().map(|it| (it.0, it.1)).collect();
    let hand_offs: Vec<_> = all.iter().map(|it| (it.0, it.2)).collect();
    for (heading, rows) in
        [("Guards per second", guards), ("Hand-offs to another task per second", hand_offs)]
    {
        let _ = writeln!(
            bars,
            "<text x=\"16\" y=\"{:.0}\" font-size=\"14\" font-weight=\"bold\" fill=\"#222\">{heading}</text>",
            y + 14.0,
        );
        y += STEP;
        for (name, rate) in rows {
            bars.push_str(&bar(name, rate, y));
            y += STEP;
        }
        y += STEP / 2.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 {y:.0}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"18\" fill=\"#222\">{}: 4 processes × 16 tasks on one key</text>\n\
         <text x=\"16\" y=\"48\" font-size=\"12\" fill=\"#666\">logarithmic: every grey line is ten times the one before</text>\n\
         {}{bars}</svg>\n",
        sheet.title(),
        lines(y)
    )
}

/// A line for each power of ten.
fn lines(bottom: f64) -> String {
    let mut out = String::new();
    for decade in 0..8_u32 {
        let x = LEFT + WIDTH * f64::from(decade) / DECADES;
        let _ =
            writeln!(out, "<line x1=\"{x:.1}\" y1=\"58\" x2=\"{x:.1}\" y2=\"{bottom:.0}\" stroke=\"#ddd\"/>");
    }
    out
}

fn bar(name: &str, rate: Option<f64>, y: f64) -> String {
    let label: String = name.chars().filter(|it| !"*`".contains(*it)).collect();
    let colour = if name.contains("Lockkeeper") { "#2f7d4f" } else { "#6b7a8f" };
    let (width, said) = rate.map_or((0.0, "not measured".to_owned()), |it| {
        (WIDTH * (it.max(1.0).log10() / DECADES).min(1.0), format!("{it:.0}"))
    });
    format!(
        "<text x=\"{:.0}\" y=\"{:.0}\" font-size=\"12\" fill=\"#222\" text-anchor=\"end\">{label}</text>\n\
         <rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"16\" rx=\"2\" fill=\"{colour}\"/>\n\
         <text x=\"{:.1}\" y=\"{:.0}\" font-size=\"12\" fill=\"#222\">{said}</text>\n",
        LEFT - 8.0,
        y + 13.0,
        y,
        LEFT + width + 6.0,
        y + 13.0,
    )
}
