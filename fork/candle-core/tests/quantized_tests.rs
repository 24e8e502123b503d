include!(concat!(env!("OUT_DIR"), "/tests/quantized_tests.rs"));
