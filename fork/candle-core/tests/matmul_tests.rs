include!(concat!(env!("OUT_DIR"), "/tests/matmul_tests.rs"));
