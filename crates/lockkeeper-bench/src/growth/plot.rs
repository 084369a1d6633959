//! Four curves per store on logarithmic axes: a hand-off by the length of its line; a list of all locks, the requests that keep
//! them and the memory of each by their number.

use std::fmt::Write as _;

use super::held::Held;
use super::sheet::Sheet;
use crate::site::Store;

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 220.0;
/// Of the second row.
const LOWER: f64 = 380.0;
const UPPER: f64 = 70.0;
/// Where the names of the stores stand.
const LEGEND: f64 = 665.0;
const COLOURS: [&str; 7] = ["#2f7d4f", "#b5422c", "#33658a", "#8a5a9e", "#c98a1b", "#5b6570", "#1f9e9e"];

/// A point of a curve.
type Point = (f64, f64);

/// One of the pictures: its place, its words, and how far its axes reach, in powers of ten.
struct Chart {
    left: f64,
    top: f64,
    title: &'static str,
    below: &'static str,
    x: (i32, i32),
    y: (i32, i32),
}

const LINES: Chart = Chart {
    left: 60.0,
    top: UPPER,
    title: "A hand-off, in µs",
    below: "claims in line",
    x: (0, 4),
    y: (1, 5),
};
const LISTS: Chart = Chart {
    left: 450.0,
    top: UPPER,
    title: "A list of all locks, in ms",
    below: "locks held",
    x: (2, 6),
    y: (-1, 5),
};
const RENEWALS: Chart = Chart {
    left: 60.0,
    top: LOWER,
    title: "Requests per second to keep all",
    below: "locks held",
    x: (2, 6),
    y: (-1, 5),
};
const MEMORY: Chart = Chart {
    left: 450.0,
    top: LOWER,
    title: "Memory here for each lock, in bytes",
    below: "locks held",
    x: (2, 6),
    y: (2, 5),
};

pub(super) fn draw(sheets: &[Sheet]) -> String {
    let mut out = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 920 690\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"18\" fill=\"#222\">Cost against work, both axes logarithmic</text>\n",
    );
    for chart in [LINES, LISTS, RENEWALS, MEMORY] {
        out += &chart.frame();
    }
    for (nth, sheet) in sheets.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        #[expect(clippy::cast_precision_loss, reason = "a point of a picture")]
        let lines: Vec<Point> = sheet.lines.iter().filter_map(|it| Some((it.0 as f64, it.1?))).collect();
        out += &LINES.curve(&lines, colour);
        out += &LISTS.curve(&held(sheet, |it| it.list.as_secs_f64() * 1e3), colour);
        // A file counts no requests.
        if sheet.store != Store::Sqlite {
            out += &RENEWALS.curve(&held(sheet, |it| it.requests), colour);
        }
        out += &MEMORY.curve(&held(sheet, |it| it.bytes.0), colour);
        #[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
        let x = 60.0 + 120.0 * nth as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{LEGEND:.0}\" font-size=\"12\" fill=\"#222\">{}</text>",
            LEGEND - 7.0,
            x + 20.0,
            sheet.store.title()
        );
    }
    out + "</svg>\n"
}

/// A curve over the number of locks held.
fn held(sheet: &Sheet, of: impl Fn(&Held) -> f64) -> Vec<Point> {
    #[expect(clippy::cast_precision_loss, reason = "a point of a picture")]
    sheet.held.iter().map(|it| (it.locks as f64, of(it))).collect()
}

impl Chart {
    fn frame(&self) -> String {
        let (left, top, bottom) = (self.left, self.top, self.top + HEIGHT);
        let mut out = format!(
            "<text x=\"{left:.0}\" y=\"{:.0}\" font-size=\"14\" fill=\"#222\">{}</text>\n\
             <text x=\"{:.0}\" y=\"{:.0}\" font-size=\"12\" fill=\"#666\" text-anchor=\"middle\">{}</text>\n",
            top - 12.0,
            self.title,
            left + WIDTH / 2.0,
            bottom + 34.0,
            self.below
        );
        for decade in self.x.0..=self.x.1 {
            let x = self.at((10_f64.powi(decade), 10_f64.powi(self.y.0))).0;
            let _ = writeln!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{x:.1}\" y=\"{:.0}\" font-size=\"11\" fill=\"#666\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                power(decade)
            );
        }
        for decade in self.y.0..=self.y.1 {
            let y = self.at((10_f64.powi(self.x.0), 10_f64.powi(decade))).1;
            let _ = writeln!(
                out,
                "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" font-size=\"11\" fill=\"#666\" text-anchor=\"end\">{}</text>",
                left + WIDTH,
                left - 6.0,
                y + 4.0,
                power(decade)
            );
        }
        out
    }

    fn curve(&self, points: &[Point], colour: &str) -> String {
        let places: Vec<String> = points
            .iter()
            .map(|it| {
                let (x, y) = self.at(*it);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            places.join(" ")
        )
    }

    /// Where a point is drawn.
    fn at(&self, (x, y): Point) -> Point {
        let part = |value: f64, (from, to): (i32, i32)| {
            let part = (value.max(1e-9).log10() - f64::from(from)) / f64::from(to - from);
            part.clamp(0.0, 1.0)
        };
        (self.left + WIDTH * part(x, self.x), self.top + HEIGHT * (1.0 - part(y, self.y)))
    }
}

fn power(decade: i32) -> String {
    match decade {
        0..=3 => format!("{:.0}", 10_f64.powi(decade)),
        4..=5 => format!("{:.0}k", 10_f64.powi(decade - 3)),
        6.. => format!("{:.0}M", 10_f64.powi(decade - 6)),
        _ => format!("{}", 10_f64.powi(decade)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_store_has_a_curve_in_each_picture_but_for_what_a_file_does_not_count() {
        let mut redis = Sheet::of(Store::Redis);
        redis.read("line 1 41.75").unwrap();
        let curves = |sheets: &[Sheet]| draw(sheets).matches("<polyline").count();
        assert_eq!((curves(&[redis.clone()]), curves(&[Sheet::of(Store::Sqlite)])), (4, 3));
        let picture = draw(&[redis]);
        for title in ["A hand-off", "A list", "Requests per second", "Memory here"] {
            assert!(picture.contains(title), "{title}");
        }
    }
}
