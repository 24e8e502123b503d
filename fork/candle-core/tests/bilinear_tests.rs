// Upstream's test, derived; its lints are upstream's affair.
#![allow(clippy::all)]
include!(concat!(env!("OUT_DIR"), "/tests/bilinear_tests.rs"));
