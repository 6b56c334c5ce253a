//! Checks that tests run with debug assertions and overflow checks in ops and its decoders (`profile.test` of the workspace):
//! `cargo test --locked --workspace --exclude feedstock-python --all-features --test suite checked`.

use std::hint::black_box;
use std::panic::catch_unwind;
use symphonia::core::util::bits::mask_at;

#[test]
fn debug_assertions_are_on_in_the_tests_and_in_symphonia() {
    let is_on = cfg!(debug_assertions);
    assert!(is_on);
    assert!(catch_unwind(|| mask_at(black_box(8))).is_err(), "a bit index above 7 breaks an assertion");
}

#[test]
fn overflow_checks_are_on_in_the_tests() {
    assert!(catch_unwind(|| black_box(u8::MAX) + black_box(1)).is_err());
}
