//! OpenAI's API: completions, chats, embeddings, speech to text, models.
//!
//! Fields that OpenAI does not have go by the names that llama.cpp's server and vLLM gave them. Unknown fields are
//! ignored, as clients send many.

pub mod chat;
pub mod embeddings;
pub(super) mod inputs;
mod logprobs;
pub mod models;
mod reply;
pub mod rerank;
pub mod text;
mod text_reply;
pub mod transcriptions;
mod verbose;
pub(super) mod wire;

pub use super::generation::SamplingFields;
