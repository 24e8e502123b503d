include!(concat!(env!("OUT_DIR"), "/tests/custom_op_tests.rs"));
