include!(concat!(env!("OUT_DIR"), "/tests/nms_tests.rs"));
