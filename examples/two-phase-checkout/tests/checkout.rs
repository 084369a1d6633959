//! The example as its reader starts it: killed again and again, and both databases agree.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

#[test]
fn orders_and_stock_agree_after_three_deaths() {
    let end = Command::new(env!("CARGO_BIN_EXE_two-phase-checkout")).arg("3").output().unwrap();
    let said = String::from_utf8_lossy(&end.stdout).into_owned();
    assert!(end.status.success(), "{end:?}");
    assert!(said.contains("they agree"), "{said}");
    assert!(
        said.lines().filter(|it| it.starts_with("sold ")).count() >= 15,
        "five sales before each death: {said}"
    );
}
