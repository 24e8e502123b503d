//! A server without a network: requests go into the router, answers come out.

use crate::script::{tokenizer, tokenizer_with, Play, Script};
use axum::body::{to_bytes, Body};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use axum::Router;
use clap::Parser;
use llm_worker_rocm::chat::ChatTemplate;
use llm_worker_rocm::engine::SamplingOptions;
use llm_worker_rocm::server::{App, AppOptions, Loaded, MetricNames, TextModel};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;
use worker::http::ListenOptions;
use worker::serve::{router, DeviceInfo, Identity};

/// ChatML whose assistant may think.
pub const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>{% if enable_thinking %}<think>{% endif %}{# </think> #}";

/// Listen options as the command line gives them.
pub fn listen(arguments: &[&str]) -> ListenOptions {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        listen: ListenOptions,
    }
    let program = std::iter::once(&"serve");
    Cli::parse_from(program.chain(arguments)).listen
}

/// A worker that is not loaded.
pub fn app() -> Arc<App> {
    app_with(false)
}

fn app_with(any_model: bool) -> Arc<App> {
    app_changed(|options| options.any_model = any_model)
}

/// A worker with other options that is not loaded.
pub fn app_changed(change: impl FnOnce(&mut AppOptions)) -> Arc<App> {
    let identity = Identity {
        worker_id: "worker-1".to_string(),
        port: 8080,
        device: DeviceInfo {
            name: "cpu".to_string(),
            description: "CPU, 2 threads".to_string(),
            fallback: Some("there is no GPU".to_string()),
        },
        ..Identity::default()
    };
    let mut options = AppOptions {
        model: "org/model".to_string(),
        aliases: vec!["alias".to_string()],
        any_model: false,
        verbose: false,
        sampling: SamplingOptions {
            temperature: 0.8,
            top_k: Some(40),
            ..SamplingOptions::greedy()
        },
        seed: None,
        max_tokens: None,
        slots: true,
        page: true,
        timeout: Some(Duration::from_secs(600)),
        metric_names: MetricNames::Both,
    };
    change(&mut options);
    App::new(identity, options)
}

/// A text model around an engine.
pub fn text_model(script: Arc<Script>) -> TextModel {
    let tokenizer = Arc::new(tokenizer());
    let template = ChatTemplate::new(TEMPLATE, Some("<s>"), Some("</s>")).unwrap();
    TextModel::new(script, tokenizer, template)
}

/// A server and the engine behind it.
pub struct Server {
    pub app: Arc<App>,
    pub script: Arc<Script>,
    router: Router,
}

impl Server {
    pub fn new(plays: impl IntoIterator<Item = Play>) -> Self {
        Self::with_arguments(plays, &[])
    }

    pub fn with_arguments(plays: impl IntoIterator<Item = Play>, arguments: &[&str]) -> Self {
        let script = Arc::new(Script::new(plays));
        let app = app();
        app.frame.serve(Loaded {
            text: Some(Arc::new(text_model(script.clone()))),
            ..Loaded::default()
        });
        Self::around(app, script, arguments)
    }

    /// A server that answers for every model.
    pub fn answering_any_model(plays: impl IntoIterator<Item = Play>) -> Self {
        let script = Arc::new(Script::new(plays));
        let app = app_with(true);
        app.frame.serve(Loaded {
            text: Some(Arc::new(text_model(script.clone()))),
            ..Loaded::default()
        });
        Self::around(app, script, &[])
    }

    /// A server whose model fills in the middle of texts: the tokens before, behind and in it follow those of bytes.
    pub fn filling_in(plays: impl IntoIterator<Item = Play>) -> Self {
        let script = Arc::new(Script::new(plays));
        let marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
        let template = ChatTemplate::new(TEMPLATE, None, None).unwrap();
        let tokenizer = Arc::new(tokenizer_with(&marks, |_| {}));
        let app = app();
        app.frame.serve(Loaded {
            text: Some(Arc::new(TextModel::new(
                script.clone(),
                tokenizer,
                template,
            ))),
            ..Loaded::default()
        });
        Self::around(app, script, &[])
    }

    /// A server whose model is not loaded.
    pub fn loading() -> Self {
        Self::around(app(), Arc::default(), &[])
    }

    pub fn around(app: Arc<App>, script: Arc<Script>, arguments: &[&str]) -> Self {
        Self {
            router: router(app.clone(), &listen(arguments)).unwrap(),
            app,
            script,
        }
    }

    pub async fn send(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Answer {
        let request = Request::get(path).body(Body::empty()).unwrap();
        Answer::of(self.send(request).await).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        Answer::of(self.send(json_post(path, body)).await).await
    }
}

pub fn json_post(path: &str, body: &Value) -> Request<Body> {
    Request::post(path)
        .header("Content-Type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub async fn of(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        Self {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    /// The body of a success.
    pub fn json(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        serde_json::from_str(&self.text).unwrap()
    }

    /// Status, code and message of an error.
    pub fn error(&self) -> (u16, String, String) {
        let body: Value = serde_json::from_str(&self.text).unwrap();
        let text = |name: &str| body["error"][name].as_str().unwrap_or_default().to_string();
        (self.status.as_u16(), text("code"), text("message"))
    }

    /// The frames of a stream; the last one must be `[DONE]`.
    pub fn frames(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let rest = self.text.strip_suffix("data: [DONE]\n\n");
        let rest = rest.unwrap_or_else(|| panic!("the stream has no end: {}", self.text));
        rest.split_terminator("\n\n")
            .map(|frame| serde_json::from_str(frame.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }
}
