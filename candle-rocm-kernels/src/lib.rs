//! AMD GPU kernels for candle: header-free device code, compiled once and cached.
