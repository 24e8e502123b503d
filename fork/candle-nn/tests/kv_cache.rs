include!(concat!(env!("OUT_DIR"), "/tests/kv_cache.rs"));
