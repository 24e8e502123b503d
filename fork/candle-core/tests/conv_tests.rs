include!(concat!(env!("OUT_DIR"), "/tests/conv_tests.rs"));
