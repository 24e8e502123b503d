//! Acceptance: kernels of crates of the registry, ported, compiled, and run on the simulator in waves of 32 and 64, with
//! results equal to references that are written here.

mod candle_kernels;
mod case;
mod data;
mod ggml;
mod layer_norm;
mod layouts;
mod mistral;
mod mistral_core;
mod mistral_paged;
mod mistral_quant;
mod random;
mod rotary;
mod rows;
mod run;
mod table;

use candle_kernels::{conv, elementwise, indexing, moe, products, quantized, reduce};
use run::File;

const CANDLE: &str = "candle-kernels@0.11.1";

/// A test for each file: the name of the test, the file's path, and what makes its launches.
macro_rules! files {
    ($($name:ident: $package:expr, $path:expr, $rows:expr;)*) => {
        $(#[test]
        fn $name() {
            run::run($package, &File::new($path, $rows));
        })*
    };
}

files! {
    affine: CANDLE, "src/affine.cu", elementwise::affine;
    binary: CANDLE, "src/binary.cu", elementwise::binary;
    cast: CANDLE, "src/cast.cu", elementwise::cast;
    conv: CANDLE, "src/conv.cu", |random| {
        [conv::convolutions(random), conv::unfolding(random), conv::pools(random)].concat()
    };
    fill: CANDLE, "src/fill.cu", elementwise::fill;
    indexing: CANDLE, "src/indexing.cu", indexing::indexing;
    reduce: CANDLE, "src/reduce.cu", |random| {
        [reduce::extremes_and_sums(random), reduce::norms(random), reduce::rope(random)].concat()
    };
    sort: CANDLE, "src/sort.cu", indexing::sort;
    ternary: CANDLE, "src/ternary.cu", elementwise::ternary;
    unary: CANDLE, "src/unary.cu", elementwise::unary;
    moe_align: CANDLE, "src/moe/moe_align.cu", moe::align;
    moe_gguf: CANDLE, "src/moe/moe_gguf.cu", moe::gguf;
    moe_wmma: CANDLE, "src/moe/moe_wmma.cu", moe::wmma;
    moe_wmma_gguf: CANDLE, "src/moe/moe_wmma_gguf.cu", moe::wmma_gguf;
    rotary: "candle-rotary@0.0.1", "kernels/rotary.cu", rotary::rotary;
    layer_norm: "candle-layer-norm@0.0.1", "kernels/ln_api.cu", layer_norm::all;
}

/// Files with hundreds of kernels that are made from one template.
macro_rules! sampled {
    ($($name:ident: $package:expr, $path:expr, $rows:expr;)*) => {
        $(#[test]
        fn $name() {
            let file = File::new($path, $rows);
            run::run($package, &File { sampled: true, ..file });
        })*
    };
}

sampled! {
    quantized: CANDLE, "src/quantized.cu", |random| {
        let products = quantized::quantized_vectors(random);
        let products = products.into_iter().filter(|row| !row.kernel.starts_with("mmvq"));
        [
            quantized::dequantize(random),
            quantized::float_vectors(random),
            products.collect(),
            quantized::matrices(random),
            quantized::indexed_experts(random),
        ]
        .concat()
    };
    mmvq_gguf: CANDLE, "src/mmvq_gguf.cu", |random| {
        let rows = quantized::quantized_vectors(random);
        rows.into_iter().filter(|row| row.kernel.starts_with("mmvq")).collect()
    };
}

/// Kernels with matrix instructions take their branch for GPUs without.
macro_rules! products {
    ($($(#[$attribute:meta])? $name:ident: $path:expr, $rows:expr;)*) => {
        $(#[test]
        $(#[$attribute])?
        fn $name() {
            let file = File::new(concat!("src/mmq_gguf/", $path), $rows);
            run::run(CANDLE, &File { arch: 610, ..file });
        })*
    };
}

products! {
    mmq_quantize: "mmq_quantize.cu", products::quantize;
    mmq_q4_k: "mmq_instance_q4_k.cu", |random| products::all("q4_K", random);
    #[ignore = "as mmq_q4_k, of another format: run with --include-ignored"]
    mmq_q4_0: "mmq_instance_q4_0.cu", |random| products::all("q4_0", random);
    #[ignore = "as mmq_q4_k, of another format: run with --include-ignored"]
    mmq_q4_1: "mmq_instance_q4_1.cu", |random| products::all("q4_1", random);
    #[ignore = "as mmq_q4_k, of another format: run with --include-ignored"]
    mmq_q5_0: "mmq_instance_q5_0.cu", |random| products::all("q5_0", random);
    #[ignore = "as mmq_q4_k, of another format: run with --include-ignored"]
    mmq_q5_1: "mmq_instance_q5_1.cu", |random| products::all("q5_1", random);
    #[ignore = "as mmq_q4_k, of another format: run with --include-ignored"]
    mmq_q8_0: "mmq_instance_q8_0.cu", |random| products::all("q8_0", random);
    #[ignore = "as mmq_q4_k, of another format: run with --include-ignored"]
    mmq_q2_k: "mmq_instance_q2_k.cu", |random| products::all("q2_K", random);
    #[ignore = "as mmq_q4_k, of another format: run with --include-ignored"]
    mmq_q3_k: "mmq_instance_q3_k.cu", |random| products::all("q3_K", random);
    #[ignore = "as mmq_q4_k, of another format: run with --include-ignored"]
    mmq_q5_k: "mmq_instance_q5_k.cu", |random| products::all("q5_K", random);
    #[ignore = "as mmq_q4_k, of another format: run with --include-ignored"]
    mmq_q6_k: "mmq_instance_q6_k.cu", |random| products::all("q6_K", random);
}
