include!(concat!(env!("OUT_DIR"), "/tests/bf16_conv_bench.rs"));
