//! Launches of the kernels of candle-kernels, with what has to come out.

pub mod conv;
pub mod elementwise;
pub mod indexing;
pub mod moe;
pub mod products;
pub mod quantized;
pub mod reduce;
