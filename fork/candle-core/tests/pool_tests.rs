include!(concat!(env!("OUT_DIR"), "/tests/pool_tests.rs"));
