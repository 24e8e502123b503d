//! mistralrs-paged-attn: attention over paged caches, what moves keys and values, attention with sinks, and MLA.

mod attention;
mod cache;
mod cache_rows;
mod mla;
mod paged_rows;
mod sinks_rows;

use crate::run::Rows;

/// The crate's files and their launches.
pub fn files() -> Vec<Rows> {
    vec![
        ("src/cuda/reshape_and_cache_kernel.cu", cache_rows::store),
        ("src/cuda/gather_kv_cache_kernel.cu", cache_rows::gather),
        (
            "src/cuda/concat_and_cache_mla_kernel.cu",
            cache_rows::store_mla,
        ),
        (
            "src/cuda/gather_mla_cache_kernel.cu",
            cache_rows::gather_mla,
        ),
        ("src/cuda/copy_blocks_kernel.cu", cache_rows::copy),
        ("src/cuda/update_kvscales.cu", cache_rows::scales),
        ("src/cuda/pagedattention_v1_f16.cu", |random| {
            paged_rows::v1(0, random)
        }),
        ("src/cuda/pagedattention_v1_bf16.cu", |random| {
            paged_rows::v1(1, random)
        }),
        ("src/cuda/pagedattention_v1_f32.cu", |random| {
            paged_rows::v1(2, random)
        }),
        ("src/cuda/pagedattention_v2_f16.cu", |random| {
            paged_rows::v2(0, random)
        }),
        ("src/cuda/pagedattention_v2_bf16.cu", |random| {
            paged_rows::v2(1, random)
        }),
        ("src/cuda/pagedattention_v2_f32.cu", |random| {
            paged_rows::v2(2, random)
        }),
        ("src/cuda/flash_attn_sinks.cu", sinks_rows::all),
        ("src/cuda/flashinfer_mla_decode.cu", mla::all),
    ]
}
