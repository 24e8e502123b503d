include!(concat!(env!("OUT_DIR"), "/tests/group_norm.rs"));
