//! Copies and fills by the GPU's SDMA engines.

mod packets;

pub use packets::{Compare, Packets, COPY_BYTES, FILL_BYTES, TIMESTAMP_ALIGNMENT};
