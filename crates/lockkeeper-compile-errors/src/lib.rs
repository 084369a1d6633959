//! Only tests: what the compiler says about wrong uses of `#[locked]`.
