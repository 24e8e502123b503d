#![cfg(feature = "metal")]
include!(concat!(env!("OUT_DIR"), "/tests/metal_concurrent_tests.rs"));
