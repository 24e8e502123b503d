//! Every operation with every dtype of candle's: what the CPU back end does, `Device::Rocm` does, with the same
//! outcome; what it does not do is an error that names the dtype. Nothing panics.

differential::tests! {
    every_operation_in_every_dtype: "dtypes",
    sdpa_in_every_dtype: "sdpa-dtypes",
    small_floats_are_moved_and_saved: "small-floats",
    reductions_of_nothing: "reductions-of-nothing",
}
