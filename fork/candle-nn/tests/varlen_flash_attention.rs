include!(concat!(env!("OUT_DIR"), "/tests/varlen_flash_attention.rs"));
