include!(concat!(env!("OUT_DIR"), "/tests/batch_norm.rs"));
