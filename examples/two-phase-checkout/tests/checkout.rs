//! The example as its reader starts it: killed again and again, and both databases agree.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

#[test]
fn orders_and_stock_agree_after_three_deaths() {
    let end = Command::new(env!("CARGO_BIN_EXE_two-phase-checkout")).arg("3").output().unwrap();
    let said = String::from_utf8_lossy(&end.stdout).into_owned();
    assert!(end.status.success(), "{end:?}");
    assert_eq!(said.matches("they agree").count(), 3, "compared after each death: {said}");
    assert!(!said.contains("DIFFER"), "{said}");
    assert!(
        said.lines().filter(|it| it.starts_with("sold ")).count() >= 15,
        "five sales before each death: {said}"
    );
}

/// As its README says: nobody counts, and the reader kills.
#[test]
fn whoever_kills_the_shop_sees_that_both_agree() {
    let mut town =
        Command::new(env!("CARGO_BIN_EXE_two-phase-checkout")).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(town.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.find(|it| it.starts_with("the shop is process ")).unwrap();
    let shop: Vec<&str> = first.split([' ', ';']).collect();
    lines.find(|it| it == "sold 3").unwrap();
    let killed = Command::new("kill").args(["-9", shop[4]]).status().unwrap();
    assert!(killed.success(), "{first}");
    let compared = lines.find(|it| it.contains("agree") || it.contains("DIFFER")).unwrap();
    assert!(compared.ends_with("they agree"), "{compared}");
    // And the next shop opens.
    lines.find(|it| it.starts_with("the shop is process ")).unwrap();
    town.kill().unwrap();
    town.wait().unwrap();
}
