//! What `#[locked]` says about mistakes. The expected words are those of the compiler the project is built with;
//! after an update of it, look at them and write them anew with `TRYBUILD=overwrite`.

#[test]
fn mistakes_are_shown_where_they_are() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
