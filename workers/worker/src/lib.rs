//! What candle-rocm's workers share: devices, models on disk, progress, errors.
