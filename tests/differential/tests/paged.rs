//! The paged cache of candle-rocm-flash-attn, on the GPU and on the CPU, against the textbook in f64: written in pieces
//! with the rotary embedding fused, then read in place.

differential::tests! {
    on_the_cpu: "paged-on-the-cpu",
    on_the_gpu: "paged",
    what_does_not_fit_is_refused: "paged-refusals",
}
