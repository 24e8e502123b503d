include!(concat!(env!("OUT_DIR"), "/tests/layout_tests.rs"));
