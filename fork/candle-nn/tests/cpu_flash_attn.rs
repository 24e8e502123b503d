include!(concat!(env!("OUT_DIR"), "/tests/cpu_flash_attn.rs"));
