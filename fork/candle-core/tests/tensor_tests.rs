include!(concat!(env!("OUT_DIR"), "/tests/tensor_tests.rs"));
