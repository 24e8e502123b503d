include!(concat!(env!("OUT_DIR"), "/tests/ops.rs"));
