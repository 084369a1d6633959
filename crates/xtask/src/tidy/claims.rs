//! No claim without its page: each thing that the README says you get leads to where it is shown.

const SECTION: &str = "\n## What you get\n";

pub(super) fn check(readme: &str, complaints: &mut Vec<String>) {
    let section = readme.split_once(SECTION).map(|it| it.1.split("\n## ").next().unwrap_or_default());
    let Some(section) = section else {
        return complaints.push("README.md: it no longer says what you get".to_owned());
    };
    for claim in section.split("\n- ").skip(1).filter(|it| !it.contains("](docs/")) {
        let words: Vec<&str> = claim.split_whitespace().take(6).collect();
        complaints.push(format!("README.md: no page shows \"{} …\"", words.join(" ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_without_a_page_is_noticed() {
        let page = "# X\n\n## What you get\n\n- **[Speed](docs/a.md)**, much\n  of it.\n- Peace of mind.\n\n## More\n\n- Anything.\n";
        let mut complaints = Vec::new();
        check(page, &mut complaints);
        assert_eq!(complaints, ["README.md: no page shows \"Peace of mind. …\""]);
        check("# X\n", &mut complaints);
        assert_eq!(complaints.len(), 2);
    }
}
