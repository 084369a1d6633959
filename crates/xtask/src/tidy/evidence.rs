//! Every test that the reliability page names is there: a page that claims evidence must not outlive it.

use std::collections::HashSet;

/// A word this long with underscores in it is the name of a test; shorter ones are names of files and modules.
const TEST_NAME_MIN: usize = 18;

/// `sources` is the text of every Rust file.
pub(super) fn check(page: &str, sources: &[String], complaints: &mut Vec<String>) {
    let known: HashSet<&str> = sources.iter().flat_map(|it| words(it)).collect();
    for line in page.lines().filter(|it| it.starts_with("| ")) {
        let Some(cell) = line.trim_end_matches(['|', ' ']).rsplit('|').next() else { continue };
        for name in words(cell).filter(|it| TEST_NAME_MIN <= it.len() && it.contains('_')) {
            if !known.contains(name) {
                complaints.push(format!("docs/reliability.md: there is no test `{name}`"));
            }
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|it: char| !(it.is_alphanumeric() || it == '_')).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_gone_is_noticed() {
        let page = "| A1 | core | a_name_in_a_cell_that_is_no_test | `x: y::a_test_that_is_there_now`, a_test_that_went_away |";
        let mut complaints = Vec::new();
        check(page, &["fn a_test_that_is_there_now() {}".to_owned()], &mut complaints);
        assert_eq!(complaints, ["docs/reliability.md: there is no test `a_test_that_went_away`"]);
    }
}
