//! candle-nn's scaled dot product attention against the textbook in f64.

differential::tests! {
    sdpa: "attention",
}
