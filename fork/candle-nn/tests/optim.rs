include!(concat!(env!("OUT_DIR"), "/tests/optim.rs"));
