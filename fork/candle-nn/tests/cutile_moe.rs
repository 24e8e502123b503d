#![cfg(feature = "cutile")]
include!(concat!(env!("OUT_DIR"), "/tests/cutile_moe.rs"));
