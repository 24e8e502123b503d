include!(concat!(env!("OUT_DIR"), "/tests/sdpa.rs"));
