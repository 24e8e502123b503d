include!(concat!(env!("OUT_DIR"), "/tests/rnn.rs"));
