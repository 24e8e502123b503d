// Upstream's test, derived; its lints are upstream's affair.
#![allow(clippy::all)]
#![cfg(feature = "metal")]
include!(concat!(env!("OUT_DIR"), "/tests/metal_concurrent_tests.rs"));
