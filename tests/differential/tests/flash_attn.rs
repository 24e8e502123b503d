//! The functions of candle-rocm-flash-attn, on the GPU and on the CPU, against the textbook in f64.

differential::tests! {
    every_function: "flash_attn",
    what_is_refused: "flash-attn-refusals",
}
