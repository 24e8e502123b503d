include!(concat!(env!("OUT_DIR"), "/tests/grad_tests.rs"));
