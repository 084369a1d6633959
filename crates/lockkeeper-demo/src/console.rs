//! What the demo wants of the program around it: how to speak, and what must not be printed as it is.

use crate::failure::Failure;

/// How many columns the demo's table has.
pub const COLUMNS: usize = 10;

/// The program that shows the demo.
pub trait Console: Sync {
    /// Tell the user something beside the data, without secrets.
    fn say(&self, words: &str);

    /// Write data to standard output.
    ///
    /// # Errors
    /// If it cannot be written.
    fn data(&self, text: &str) -> Result<(), Failure>;

    /// Rows under a heading, in columns.
    fn table(&self, heading: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String;

    /// A text on one line with nothing in it that moves a cursor.
    fn plain(&self, text: &str) -> String;

    /// A URL fit to print: as [`plain`](Console::plain), without its password.
    fn url(&self, url: &str) -> String;
}
