//! The HTTP server: against an engine that plays scripts, and against a real model.

#[path = "../../../worker/tests/common/mod.rs"]
mod common;
#[path = "../numbers/mod.rs"]
mod numbers;
#[path = "../smollm2/mod.rs"]
mod smollm2;
#[path = "../tiny_whisper/mod.rs"]
mod tiny_whisper;

mod adapters;
mod anthropic;
mod batches;
mod calls;
mod chats;
mod client;
mod grammars;
mod life;
mod limits;
mod memory;
mod model;
mod native;
mod ollama;
mod openai;
mod prompts;
mod rbee;
mod responses;
mod routers;
mod script;
mod speech;
mod worker_routes;
