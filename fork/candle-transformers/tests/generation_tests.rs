include!(concat!(env!("OUT_DIR"), "/tests/generation_tests.rs"));
