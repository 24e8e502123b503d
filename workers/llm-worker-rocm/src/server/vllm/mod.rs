//! Routes of vLLM's server that others do not have, or have in another form: tokens of texts and chats, and what the
//! tokenizer is (<https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html>).

mod score;
mod tokens;

pub(super) use score::score;
pub use score::ScoreFields;
pub use tokens::TokenizeFields;
pub(super) use tokens::{tokenize, tokenizer_info};
