//! Convolutions as users call them, groups included, against the definition in f64. (candle's CPU back end is no
//! oracle: it multiplies only the first batch of some transposed convolutions.)

differential::tests! {
    convolutions: "conv",
    gradients: "conv-gradients",
}
