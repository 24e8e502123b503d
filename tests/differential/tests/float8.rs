//! `candle_nn::float8` on both devices.

differential::tests! {
    products_with_scales: "scaled-matmul",
    quantization: "quantize-f8",
    what_does_not_fit_is_refused: "scaled-matmul-refusals",
    there_are_no_gradients: "float8-gradients",
    files_keep_their_dtype: "float8-files",
}
