include!(concat!(env!("OUT_DIR"), "/tests/bf16_cpu_ops.rs"));
