include!(concat!(env!("OUT_DIR"), "/tests/loss.rs"));
