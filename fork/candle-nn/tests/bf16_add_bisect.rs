include!(concat!(env!("OUT_DIR"), "/tests/bf16_add_bisect.rs"));
