//! Rows under a heading, in columns that fit the screen: what must give way is shortened, the rest stays whole.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::screen::{Screen, Tone};

/// A column: its heading, and how it gives way where not all columns fit.
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    pub(crate) gives: Gives,
}

/// How a column gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gives {
    /// Not at all.
    Never,
    /// It is shortened, to so little at least.
    To(usize),
    /// It is left out before any other is shortened: a part of it says nothing.
    All,
}

/// A cell, fit to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Cell {
    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Cell { text: text.into(), tone }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::toned(text, Tone::Plain)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::from(text.to_owned())
    }
}

/// Between two columns.
const GAP: usize = 2;

/// The lines of a table: its heading first.
pub(crate) fn lines<const N: usize>(
    columns: &[Column; N],
    rows: &[[Cell; N]],
    screen: Screen,
) -> Vec<String> {
    let heading = columns.each_ref().map(|it| Cell::toned(it.heading, Tone::Heading));
    let all = || std::iter::once(&heading).chain(rows);
    let width = |at: usize| all().map(|it| it[at].text.width()).max().unwrap_or(0);
    let mut kept: Vec<(usize, usize)> = (0..N).map(|at| (at, width(at))).collect();
    if let Some(room) = screen.width {
        shrink(columns, &mut kept, room);
    }
    all().map(|it| line(it, &kept, screen)).collect()
}

/// Of the columns with their widths, leave out those that only fit whole, and then take from the widest that may give, until all
/// fit or none can give more.
fn shrink(columns: &[Column], kept: &mut Vec<(usize, usize)>, room: usize) {
    let all = |kept: &[(usize, usize)]| {
        kept.iter().map(|it| it.1).sum::<usize>() + GAP * kept.len().saturating_sub(1)
    };
    if room < all(kept) {
        kept.retain(|it| columns[it.0].gives != Gives::All);
    }
    while room < all(kept) {
        let may_give = |it: &&mut (usize, usize)| match columns[it.0].gives {
            Gives::To(least) => least < it.1,
            Gives::Never | Gives::All => false,
        };
        let Some(widest) = kept.iter_mut().filter(may_give).max_by_key(|it| it.1) else { return };
        widest.1 -= 1;
    }
}

/// The cells of the columns that are kept, each in its width.
fn line(row: &[Cell], kept: &[(usize, usize)], screen: Screen) -> String {
    let (mut out, mut used) = (String::new(), 0);
    let last = kept.iter().rposition(|it| !row[it.0].text.is_empty()).unwrap_or(0);
    for (at, (column, width)) in kept.iter().enumerate().take(last + 1) {
        let cell = &row[*column];
        // What still does not fit is cut off, so that a row stays a line.
        let room = screen.width.map_or(*width, |it| it.saturating_sub(used).min(*width));
        let text = shortened(&cell.text, room);
        let left = width - text.width().min(*width);
        out.push_str(&screen.paint(&text, cell.tone));
        used += width + GAP;
        if at < last && screen.width.is_none_or(|it| used < it) {
            out.extend(std::iter::repeat_n(' ', left + GAP));
        } else if screen.width.is_some_and(|it| it <= used) {
            break;
        }
    }
    out
}

/// The text in at most so many columns; what is missing is shown by a mark.
pub(crate) fn shortened(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut used = 0;
    let fits = |it: &char| {
        used += it.width().unwrap_or(0);
        used < columns
    };
    let kept: String = text.chars().take_while(fits).collect();
    if columns == 0 { kept } else { kept + "…" }
}

/// Rows under a heading, in columns as wide as their widest cell. Cells must be fit to print.
#[cfg(any(feature = "demo", feature = "twophase"))]
pub(crate) fn plain<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let heading = heading.map(str::to_owned);
    let all = || std::iter::once(&heading).chain(rows);
    let mut widths = [0; N];
    for row in all() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    let mut out = String::new();
    for row in all() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', 2 + width - cell.width()));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column { heading: "NAME", gives: Gives::To(6) },
        Column { heading: "NOTE", gives: Gives::To(4) },
        Column { heading: "N", gives: Gives::Never },
    ];

    fn rows() -> [[Cell; 3]; 2] {
        [
            ["注文注文注文".into(), "a note that is long".into(), "1".into()],
            ["orders".into(), "-".into(), "12".into()],
        ]
    }

    #[test]
    fn without_a_width_nothing_is_cut() {
        let lines = lines(&COLUMNS, &rows(), Screen::default());
        assert_eq!(lines[0], "NAME          NOTE                 N");
        assert_eq!(lines[1], "注文注文注文  a note that is long  1");
        assert_eq!(lines[2], "orders        -                    12");
    }

    #[test]
    fn a_table_fits_its_screen_at_every_width() {
        for width in 1..60 {
            let screen = Screen { width: Some(width), ..Screen::default() };
            for line in lines(&COLUMNS, &rows(), screen) {
                assert!(line.width() <= width, "{width}: {line:?}");
            }
        }
        let screen = Screen { width: Some(20), ..Screen::default() };
        let lines = lines(&COLUMNS, &rows(), screen);
        assert!(lines[1].ends_with("  1"), "numbers stay whole: {lines:?}");
        assert!(lines[1].contains('…'), "{lines:?}");
    }

    #[test]
    fn what_says_nothing_in_part_is_left_out_before_anything_is_shortened() {
        let columns = [
            Column { heading: "NAME", gives: Gives::To(6) },
            Column { heading: "FENCE", gives: Gives::All },
            Column { heading: "N", gives: Gives::Never },
        ];
        let rows = [["orders/42".into(), "1176458118597378048".into(), "1".into()]];
        let at = |width| lines(&columns, &rows, Screen { width: Some(width), ..Screen::default() });
        assert_eq!(at(33), ["NAME       FENCE                N", "orders/42  1176458118597378048  1"]);
        assert_eq!(at(32), ["NAME       N", "orders/42  1"]);
        assert_eq!(at(10), ["NAME     N", "orders…  1"]);
    }

    #[test]
    fn what_is_cut_has_a_mark() {
        let short = shortened(&"注".repeat(100), 40);
        assert_eq!((short.chars().count(), short.width()), (20, 39));
        assert!(short.ends_with('…'));
        assert_eq!((shortened("short", 5), shortened("short", 4)), ("short".into(), "sho…".into()));
        assert_eq!((shortened("short", 1), shortened("short", 0)), ("…".into(), String::new()));
    }

    #[cfg(any(feature = "demo", feature = "twophase"))]
    #[test]
    fn columns_line_up_also_under_wide_characters() {
        let rows = [["注文".to_owned(), "x".to_owned()], ["orders".to_owned(), "y".to_owned()]];
        assert_eq!(plain(["NAME", "N"], &rows), "NAME    N\n注文    x\norders  y\n");
    }
}
