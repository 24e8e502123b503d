// Upstream's test, derived; its lints are upstream's affair.
#![allow(clippy::all)]
#![cfg(feature = "cutile")]
include!(concat!(env!("OUT_DIR"), "/tests/cutile_tests.rs"));
