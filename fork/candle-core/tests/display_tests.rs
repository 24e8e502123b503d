include!(concat!(env!("OUT_DIR"), "/tests/display_tests.rs"));
