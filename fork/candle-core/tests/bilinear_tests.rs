include!(concat!(env!("OUT_DIR"), "/tests/bilinear_tests.rs"));
