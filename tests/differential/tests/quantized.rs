//! Quantized matrices in every format: as floats, as tables of embeddings, in products, and as experts of a mixture.

differential::tests! {
    quantized_tensors: "quantized",
    mixtures: "mixtures",
}
