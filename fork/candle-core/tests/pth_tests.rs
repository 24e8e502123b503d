include!(concat!(env!("OUT_DIR"), "/tests/pth_tests.rs"));
