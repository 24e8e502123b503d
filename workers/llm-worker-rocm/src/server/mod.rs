//! The HTTP server, in the frame of [`worker::serve`].
//!
//! | Module         | Gives                                                                  |
//! |----------------|------------------------------------------------------------------------|
//! | [`app`]        | what all handlers share: options, metrics, jobs                        |
//! | [`backend`]    | the engine as the server sees it, the models around it, their life     |
//! | [`generation`] | from a request's fields to answers, for every API that generates text  |
//! | [`jobs`]       | jobs whose stream nobody has taken yet                                 |
//! | [`turns`]      | work that runs alone on its device                                     |
//! | [`transcriber`] | a model that writes speech down, and what it is doing                  |
//! | [`openai`]     | `/v1/chat/completions` and its sisters                                 |
//! | [`responses`]  | OpenAI's `/v1/responses`                                               |
//! | [`anthropic`]  | Anthropic's `/v1/messages`                                             |
//! | [`ollama`]     | Ollama's `/api/chat` and its sisters                                   |
//! | [`fleet`]      | what is different where several models are served                      |
//! | [`cohere`]     | Cohere's `/v2/embed` and `/v2/rerank`                                  |
//! | [`vllm`]       | routes that only vLLM's server has, or has in another form             |
//! | [`native`]     | properties, tokens, templates                                          |
//! | [`files`]      | files that clients keep here                                           |
//! | [`batches`]    | the requests of such files, answered beside others                     |
//! | [`slots`]      | the sequences that run, their files, and sleep                         |
//! | [`routers`]    | what routers in front of several workers ask                           |
//! | [`rbee`]       | the jobs of rbee's workers                                             |
//! | [`metrics`]    | the figures of `/metrics`                                              |
//! | [`page`]       | the chat page                                                          |

pub mod adapters;
mod anthropic;
mod app;
pub mod backend;
mod batches;
mod cohere;
mod error;
mod files;
mod fleet;
mod following;
mod generation;
mod jobs;
pub mod metrics;
mod native;
mod ollama;
mod openai;
mod page;
mod rbee;
mod responses;
mod routers;
mod slots;
pub mod transcriber;
mod turns;
mod vllm;

pub use app::{App, AppOptions};
pub use backend::{Backend, Loaded, Origin, TextModel};
pub use files::{FileOptions, Store as FileStore};
pub use following::{FollowerApp, Following};
pub use metrics::MetricNames;
pub use transcriber::Transcriber;

use axum::extract::State;
use generation::AdapterFields;
use openai::{chat, embeddings, models, rerank, text, transcriptions, SamplingFields};
use std::sync::Arc;
use worker::serve::{Route, Routes};

/// The state of handlers.
type Shared = State<Arc<App>>;

/// The routes of this worker; the frame adds its own.
fn routes() -> Routes<App> {
    let public = vec![
        Route::get("/", "The chat page", page::index),
        Route::get(
            "/page/{version}/{*file}",
            "A file of the chat page",
            page::file,
        ),
    ];
    let create = "Creates a job; its stream is taken once";
    let stream = "The stream of a job, as server-sent events";
    let scores = "Scores documents for a query";
    let now = "Requests and tokens at the moment";
    let model_info = "What the model is, as SGLang tells it";
    let server_info = "How the worker is set, as SGLang tells it";
    let protected = vec![
        Route::post(
            "/v1/chat/completions",
            "Answers a chat; streams server-sent events on request",
            chat::create,
        )
        .takes::<chat::ChatFields>()
        .takes::<SamplingFields>(),
        Route::post(
            "/chat/completions",
            "/v1/chat/completions, by llama.cpp's name",
            chat::create,
        )
        .takes::<chat::ChatFields>()
        .takes::<SamplingFields>(),
        Route::post(
            "/chat/completions/input_tokens",
            "/v1/chat/completions/input_tokens, by llama.cpp's name",
            chat::input_tokens,
        )
        .takes::<chat::ChatFields>(),
        Route::post(
            "/v1/chat/completions/input_tokens",
            "How many tokens a chat's prompt has",
            chat::input_tokens,
        )
        .takes::<chat::ChatFields>(),
        Route::post(
            "/v1/completions",
            "Continues a text; streams server-sent events on request",
            text::create,
        )
        .takes::<text::CompletionFields>()
        .takes::<SamplingFields>(),
        Route::post(
            "/v1/responses",
            "Answers a chat, which later responses can go on from; streams server-sent events on request",
            responses::create,
        )
        .takes::<responses::ResponseFields>()
        .takes::<SamplingFields>(),
        Route::post("/responses", "/v1/responses, by llama.cpp's name", responses::create)
            .takes::<responses::ResponseFields>()
            .takes::<SamplingFields>(),
        Route::post(
            "/v1/responses/input_tokens",
            "How many tokens a response's prompt has",
            responses::input_tokens,
        )
        .takes::<responses::ResponseFields>(),
        Route::post(
            "/responses/input_tokens",
            "/v1/responses/input_tokens, by llama.cpp's name",
            responses::input_tokens,
        )
        .takes::<responses::ResponseFields>(),
        Route::get("/v1/responses/{id}", "A response that is kept", responses::show),
        Route::delete("/v1/responses/{id}", "Forgets a response", responses::delete),
        Route::post(
            "/v1/messages",
            "Answers a chat in the form of Anthropic's API; streams server-sent events on request",
            anthropic::create,
        )
        .takes::<anthropic::MessageFields>()
        .takes::<SamplingFields>(),
        Route::post(
            "/v1/messages/count_tokens",
            "How many tokens the prompt of such a chat has",
            anthropic::count_tokens,
        )
        .takes::<anthropic::MessageFields>(),
        Route::post(
            "/v1/messages/batches",
            "Answers such chats, after those that somebody waits for",
            anthropic::batches::create,
        )
        .takes::<anthropic::batches::BatchFields>(),
        Route::get(
            "/v1/messages/batches",
            "The batches of such chats",
            anthropic::batches::list,
        ),
        Route::get(
            "/v1/messages/batches/{id}",
            "How far such a batch is",
            anthropic::batches::show,
        ),
        Route::delete(
            "/v1/messages/batches/{id}",
            "Forgets such a batch and its results",
            anthropic::batches::delete,
        ),
        Route::post(
            "/v1/messages/batches/{id}/cancel",
            "Cancels such a batch",
            anthropic::batches::cancel,
        )
        .takes::<batches::CancelFields>(),
        Route::get(
            "/v1/messages/batches/{id}/results",
            "The results of such a batch, as lines of JSON",
            anthropic::batches::results,
        ),
        Route::post("/api/chat", "Answers a chat as Ollama does", ollama::chat)
            .takes::<ollama::ChatFields>(),
        Route::post(
            "/api/generate",
            "Answers a text, or goes on with it, as Ollama does",
            ollama::generate,
        )
        .takes::<ollama::GenerateFields>(),
        Route::post("/api/embed", "Texts to vectors, as Ollama does", ollama::embed)
            .takes::<ollama::EmbedFields>(),
        Route::post("/api/embeddings", "A text to a vector, as Ollama did", ollama::embeddings)
            .takes::<ollama::EmbeddingsFields>(),
        Route::post("/api/show", "The model, as Ollama tells it", ollama::show)
            .takes::<ollama::ShowFields>(),
        Route::get("/api/tags", "The model in a list, as Ollama tells it", ollama::tags),
        Route::get("/api/ps", "The model in a list once it is loaded", ollama::ps),
        Route::get("/api/version", "The version of Ollama's API", ollama::version),
        Route::post("/v1/embeddings", "Texts to vectors", embeddings::create)
            .takes::<embeddings::EmbeddingFields>(),
        Route::post("/embeddings", "Texts to vectors, as llama.cpp's server gives them", embeddings::create_native)
            .takes::<embeddings::EmbeddingFields>(),
        Route::post("/embedding", "The same", embeddings::create_native)
            .takes::<embeddings::EmbeddingFields>(),
        Route::post("/v1/rerank", scores, rerank::create).takes::<rerank::RerankFields>(),
        Route::post("/rerank", scores, rerank::create).takes::<rerank::RerankFields>(),
        Route::post("/v1/reranking", scores, rerank::create).takes::<rerank::RerankFields>(),
        Route::post("/reranking", scores, rerank::create).takes::<rerank::RerankFields>(),
        Route::post("/v2/rerank", scores, cohere::rerank).takes::<cohere::RerankFields>(),
        Route::post("/v2/embed", "Texts to vectors, as Cohere does", cohere::embed)
            .takes::<cohere::EmbedFields>(),
        Route::post("/v1/score", scores, vllm::score).takes::<vllm::ScoreFields>(),
        Route::post("/score", scores, vllm::score).takes::<vllm::ScoreFields>(),
        Route::post(
            "/v1/audio/transcriptions",
            "Writes speech down; streams server-sent events on request",
            transcriptions::create,
        )
        .takes_form::<transcriptions::TranscriptionFields>(),
        Route::post(
            "/v1/audio/translations",
            "Writes speech down in English",
            transcriptions::translate,
        )
        .takes_form::<transcriptions::TranscriptionFields>(),
        Route::post("/v1/files", "Keeps a file", files::create)
            .takes_form::<files::FileFields>()
            .takes_any_length(),
        Route::get("/v1/files", "The files", files::list),
        Route::get("/v1/files/{id}", "A file's description", files::show),
        Route::delete("/v1/files/{id}", "Forgets a file", files::delete),
        Route::get("/v1/files/{id}/content", "A file's content", files::content),
        Route::post(
            "/v1/batches",
            "Answers the requests of a file, after those that somebody waits for",
            batches::create,
        )
        .takes::<batches::BatchFields>(),
        Route::get("/v1/batches", "The batches", batches::list),
        Route::get("/v1/batches/{id}", "How far a batch is", batches::show),
        Route::post("/v1/batches/{id}/cancel", "Cancels a batch", batches::cancel)
            .takes::<batches::CancelFields>(),
        Route::get("/v1/models", "The model, in a list", models::list),
        Route::get("/models", "The model, in a list", models::list),
        Route::get("/v1/models/{*id}", "The model", models::show),
        Route::post(
            "/completion",
            "Continues a text as llama.cpp does; streams server-sent events on request",
            native::completion::create,
        )
        .takes::<native::NativeFields>()
        .takes::<SamplingFields>(),
        Route::post(
            "/completions",
            "The same under its other name",
            native::completion::create,
        )
        .takes::<native::NativeFields>()
        .takes::<SamplingFields>(),
        Route::post(
            "/infill",
            "Fills in the middle of a text, with models that were trained on that",
            native::infill::create,
        )
        .takes::<native::InfillFields>()
        .takes::<native::NativeFields>()
        .takes::<SamplingFields>(),
        Route::post(
            "/predict",
            "Several requests in one, as Vertex AI sends them",
            native::predict::create,
        )
        .takes::<native::PredictFields>(),
        Route::post("/tokenize", "Text to tokens", vllm::tokenize)
            .takes::<native::TokenizeFields>()
            .takes::<vllm::TokenizeFields>(),
        Route::get("/tokenizer_info", "The tokenizer's marks", vllm::tokenizer_info),
        Route::post("/detokenize", "Tokens to text", native::detokenize)
            .takes::<native::DetokenizeFields>(),
        Route::post(
            "/apply-template",
            "The prompt that a chat would be",
            native::apply_template,
        )
        .takes::<chat::ChatFields>(),
        Route::get(
            "/lora-adapters",
            "The model's adapters, which requests choose by `lora` or by their names",
            adapters::list,
        ),
        Route::post(
            "/lora-adapters",
            "Sets the adapters of requests that choose none",
            adapters::set,
        )
        .takes::<Vec<AdapterFields>>(),
        Route::get(
            "/props",
            "What the worker is and how it is set",
            native::props,
        ),
        Route::get("/slots", "The sequences that run at once", slots::list),
        Route::post(
            "/slots/{id}",
            "Saves, restores or forgets (?action=save, restore, erase) what the cache knows of a slot's tokens",
            slots::act,
        )
        .takes::<slots::SlotFields>(),
        Route::post(
            "/sleep",
            "Gives weights and cache back until the next request",
            slots::sleep,
        )
        .takes::<slots::SleepFields>(),
        Route::post("/wake_up", "Loads the model again", slots::wake_up)
            .takes::<slots::SleepFields>(),
        Route::get(
            "/is_sleeping",
            "Whether weights and cache are given back",
            slots::is_sleeping,
        ),
        Route::get("/v1/loads", now, routers::loads),
        Route::get("/loads", now, routers::loads),
        Route::get("/get_load", "The same in an older form", routers::load),
        Route::get("/model_info", model_info, routers::model_info),
        Route::get("/get_model_info", model_info, routers::model_info),
        Route::get("/server_info", server_info, routers::server_info),
        Route::get("/get_server_info", server_info, routers::server_info),
        Route::get("/version", "The worker's version", routers::version),
        Route::post(
            "/v1/chat/completions/render",
            "The tokens that a chat would be, as vLLM tells them",
            routers::render_chat,
        )
        .takes::<chat::ChatFields>()
        .takes::<SamplingFields>(),
        Route::post(
            "/v1/completions/render",
            "The tokens of prompts, as vLLM tells them",
            routers::render_text,
        )
        .takes::<text::CompletionFields>()
        .takes::<SamplingFields>(),
        Route::post("/v1/jobs", create, rbee::create)
            .takes::<rbee::JobFields>()
            .takes::<SamplingFields>(),
        Route::get("/v1/jobs/{id}/stream", stream, rbee::stream),
        Route::post("/v1/inference", create, rbee::create_inference)
            .takes::<rbee::JobFields>()
            .takes::<SamplingFields>(),
        Route::get("/v1/inference/{id}/stream", stream, rbee::stream),
    ];
    Routes { public, protected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker::serve::{self, openapi};

    #[test]
    fn every_route_is_described() {
        let document = openapi::document(&serve::all_routes::<App>());
        for route in serve::all_routes::<App>().iter() {
            let (path, method) = (route.path(), route.method().as_str());
            assert!(!route.summary().is_empty(), "{path}");
            assert_eq!(route.has_body(), method == "POST", "{path}");
            let item = &document["paths"][path.replace("{*", "{")];
            assert_eq!(item[method.to_lowercase()]["summary"], route.summary());
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = openapi::document(&serve::all_routes::<App>());
        let text = document.to_string();
        let mut count = 0;
        for part in text.split("\"$ref\":\"#").skip(1) {
            let pointer = part.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
            count += 1;
        }
        assert!(count > serve::all_routes::<App>().protected.len());
        let fields = &document["components"]["schemas"]["SamplingFields"]["properties"];
        assert!(fields["min_p"]["description"]
            .as_str()
            .unwrap()
            .contains("off"));
    }
}
