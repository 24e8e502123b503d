include!(concat!(env!("OUT_DIR"), "/tests/layer_norm.rs"));
