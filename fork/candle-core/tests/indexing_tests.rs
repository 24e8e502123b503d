include!(concat!(env!("OUT_DIR"), "/tests/indexing_tests.rs"));
