//! Derives candle's ROCm fork from the published crates at build time.
