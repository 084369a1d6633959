//! Every test that the reliability page names is there: a page that claims evidence must not outlive it.
//!
//! In the last cell of a row stands `crate: file::name, ::name, other::{name, name}`. A name counts if it is that of a function in
//! a file of that crate which the words before it name. Cases that several stores share are functions of the test kit.

/// A word this long with underscores in it is the name of a test; shorter ones are names of files and modules.
const TEST_NAME_MIN: usize = 18;
/// Where cases are kept that a store's crate only calls for.
const SHARED: &[&str] = &["lockkeeper-testkit", "lockkeeper-servers"];

/// `sources` are the name and the text of every Rust file.
pub(super) fn check(page: &str, sources: &[(String, String)], complaints: &mut Vec<String>) {
    for line in page.lines().filter(|it| it.starts_with("| ")) {
        let Some(cell) = line.trim_end_matches(['|', ' ']).rsplit('|').next() else { continue };
        for named in named_in(cell) {
            if let Some(wrong) = named.what_is_wrong(sources) {
                complaints.push(format!("docs/reliability.md: {wrong}"));
            }
        }
    }
}

/// The name of a test, and what stands before it.
struct Named<'a> {
    package: Option<&'a str>,
    /// The file or module, if one is named.
    place: Option<&'a str>,
    name: &'a str,
}

impl Named<'_> {
    fn what_is_wrong(&self, sources: &[(String, String)]) -> Option<String> {
        let name = self.name;
        let Some(package) = self.package else {
            return Some(format!("`{name}` names no crate before it"));
        };
        let there: Vec<(&str, &str)> = [&[package], SHARED]
            .concat()
            .into_iter()
            .flat_map(|package| functions_of(package, name, sources))
            .collect();
        if there.is_empty() {
            return Some(format!("there is no test `{name}` in {package}"));
        }
        let place = self.place?;
        let own = there.iter().filter(|it| is_of(package, it.0)).collect::<Vec<_>>();
        let is_there = own.is_empty() || own.iter().any(|(file, text)| is_place(place, file, text));
        (!is_there).then(|| format!("there is a test `{name}` in {package}, but not in `{place}`"))
    }
}

fn is_of(package: &str, file: &str) -> bool {
    file.strip_prefix("crates/").and_then(|it| it.strip_prefix(package)).is_some_and(|it| it.starts_with('/'))
}

/// The files of this crate that have a function of this name.
fn functions_of<'a>(
    package: &str,
    name: &str,
    sources: &'a [(String, String)],
) -> impl Iterator<Item = (&'a str, &'a str)> {
    // Some are made by a macro, which is given the name first.
    let forms = [format!("fn {name}("), format!("fn {name}<"), format!("!({name},")];
    let has = |text: &str| forms.iter().any(|it| text.contains(it));
    let of_package = sources.iter().filter(|it| is_of(package, &it.0) && has(&it.1));
    of_package.map(|it| (it.0.as_str(), it.1.as_str())).collect::<Vec<_>>().into_iter()
}

/// Whether a file, or a folder or module of it, is called so.
fn is_place(place: &str, file: &str, text: &str) -> bool {
    let place = place.trim_end_matches(".rs");
    let file = file.trim_end_matches(".rs");
    let last = place.rsplit('/').next().unwrap_or(place);
    file.ends_with(place) || file.split('/').any(|it| it == last) || text.contains(&format!("mod {last}"))
}

/// The names in a cell, each with the crate and the place that were named last.
fn named_in(cell: &str) -> Vec<Named<'_>> {
    let (mut package, mut place, mut all) = (None, None, Vec::new());
    let is_part = |it: char| it.is_alphanumeric() || matches!(it, '_' | '-' | '/' | '.' | ':');
    for run in cell.split(|it| !is_part(it)).filter(|it| !it.is_empty()) {
        if let Some(name) = run.strip_suffix(':').filter(|it| !it.ends_with(':')) {
            (package, place) = (Some(name), None);
            continue;
        }
        let parts: Vec<&str> = run.split("::").collect();
        let (name, before) = parts.split_last().unwrap_or((&"", &[]));
        if let Some(named) = before.iter().rev().find(|it| !it.is_empty() && **it != "tests") {
            place = Some(*named);
        }
        let name = name.trim_end_matches('.');
        let is_name = name.contains('_')
            && name.chars().all(|it| it == '_' || it.is_ascii_digit() || it.is_lowercase());
        if TEST_NAME_MIN <= name.len() && is_name {
            all.push(Named { package, place, name });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(cell: &str) -> Vec<String> {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let sources = [
            file(
                "crates/x/tests/y.rs",
                "async fn a_test_that_is_there_now() {}\n// a_test_in_a_comment_only",
            ),
            file("crates/x/src/lib.rs", "mod tests { fn another_that_is_there() {} }"),
            file("crates/x-more/src/z.rs", "fn one_of_another_crate() {}"),
            file("crates/lockkeeper-testkit/src/suite.rs", "fn a_case_that_all_stores_share<S>() {}"),
        ];
        let mut complaints = Vec::new();
        let page = format!("| A1 | core | a_name_in_a_cell_that_is_no_test | {cell} |");
        check(&page, &sources, &mut complaints);
        complaints.iter().map(|it| it.replace("docs/reliability.md: ", "")).collect()
    }

    #[test]
    fn a_test_that_is_there_may_be_named_in_short() {
        for cell in [
            "x: y::a_test_that_is_there_now, lib::another_that_is_there",
            "x: tests/y.rs::{a_test_that_is_there_now}; src/lib.rs::tests::another_that_is_there",
            "x: y::a_test_that_is_there_now, ::a_case_that_all_stores_share; x-more: z::one_of_another_crate",
            "x: lib.rs::tests",
        ] {
            assert_eq!(complaints(cell), [""; 0], "{cell}");
        }
    }

    #[test]
    fn a_test_that_is_gone_is_noticed_also_if_its_name_is_a_word_somewhere() {
        let gone = "there is no test `a_test_that_went_away` in x";
        assert_eq!(complaints("x: y::a_test_that_is_there_now, ::a_test_that_went_away"), [gone]);
        let comment = "there is no test `a_test_in_a_comment_only` in x";
        assert_eq!(complaints("x: y::a_test_in_a_comment_only"), [comment]);
        let elsewhere = "there is no test `one_of_another_crate` in x";
        assert_eq!(complaints("x: y::one_of_another_crate"), [elsewhere]);
        let file = "there is a test `a_test_that_is_there_now` in x, but not in `z`";
        assert_eq!(complaints("x: z::a_test_that_is_there_now"), [file]);
        let nameless = "`a_test_that_is_there_now` names no crate before it";
        assert_eq!(complaints("y::a_test_that_is_there_now"), [nameless]);
    }
}
