//! Cohere's API, version 2, as far as it concerns vectors and scores: `/v2/embed` and `/v2/rerank`
//! (<https://docs.cohere.com/reference/about>).

mod embed;
mod error;
mod rerank;

pub(super) use embed::embed;
pub use embed::EmbedFields;
pub(super) use rerank::rerank;
pub use rerank::RerankFields;
