include!(concat!(env!("OUT_DIR"), "/tests/one_hot.rs"));
