include!(concat!(env!("OUT_DIR"), "/tests/gguf_tests.rs"));
