include!(concat!(env!("OUT_DIR"), "/tests/serialization_tests.rs"));
