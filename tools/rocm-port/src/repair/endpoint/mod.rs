//! An OpenAI-compatible `/v1/chat/completions`, streamed or not.

mod reply;

use super::Stop;
use reply::{read, said_by};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::io::Read;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use ureq::config::Config;
use ureq::http::Response;
use ureq::{Agent, Body};

/// Attempts for one request.
const ATTEMPTS: u32 = 4;
/// The longest wait that a `Retry-After` is granted.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// What a model answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The message.
    pub text: String,
    /// Tokens that were sent.
    pub prompt_tokens: u64,
    /// Tokens that came back.
    pub answer_tokens: u64,
    /// Whether the endpoint did not tell numbers of tokens, so that they are a quarter of the bytes.
    pub estimated: bool,
    /// Why it ended: `stop`, `length`, …
    pub finish: Option<String>,
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The endpoint cannot be used: no sense in asking again.
    #[error("{0}")]
    Unusable(String),
    /// What came is no answer; another question may have one.
    #[error("{0}")]
    Broken(String),
    /// Interrupted by the user.
    #[error("interrupted")]
    Interrupted,
}

/// What answers questions.
pub trait Model {
    /// The name that it goes by.
    fn name(&self) -> String;

    /// Asks, and waits until `deadline` at most.
    ///
    /// # Errors
    /// If there is no reply.
    fn ask(&self, messages: &[Message], stop: &Stop, deadline: Instant) -> Result<Reply, AskError>;
}

/// A model behind HTTP.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Up to and without `/chat/completions`; `/v1` is added if no path is given.
    pub url: String,
    /// The model's name there.
    pub model: String,
    /// Sent as a bearer token, to this endpoint only: redirects are not followed.
    pub key: Option<String>,
    /// The most tokens of one answer.
    pub max_tokens: u32,
    /// Sampling temperature.
    pub temperature: f32,
    /// Whether the answer is streamed, so that a long one can be cut off.
    pub stream: bool,
    /// Time for one answer.
    pub timeout: Duration,
    /// Wait before the second attempt; doubled before each further one.
    pub backoff: Duration,
}

impl Endpoint {
    /// The address of the requests.
    ///
    /// # Errors
    /// If the URL is none of HTTP, or the key would go over the network unencrypted.
    pub fn address(&self) -> Result<String, AskError> {
        let base = self.url.trim_end_matches('/');
        let rest = base
            .strip_prefix("https://")
            .or_else(|| base.strip_prefix("http://"))
            .filter(|rest| !rest.is_empty())
            .ok_or_else(|| {
                AskError::Unusable(format!("--endpoint {base:?} is no http:// or https:// URL"))
            })?;
        let host = rest.split('/').next().unwrap_or("");
        if host.contains('@') {
            return Err(AskError::Unusable(
                "--endpoint must hold no password: use --api-key-env".into(),
            ));
        }
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let local = ["localhost", "127.0.0.1", "[::1]"].contains(&name) || host == "[::1]";
        if self.key.is_some() && base.starts_with("http://") && !local {
            let text = format!(
                "the key is not sent to {host} over plain http: use https, or no --api-key-env"
            );
            return Err(AskError::Unusable(text));
        }
        Ok(if base.ends_with("/chat/completions") {
            base.to_string()
        } else if rest.contains('/') {
            format!("{base}/chat/completions")
        } else {
            format!("{base}/v1/chat/completions")
        })
    }

    fn body(&self, messages: &[Message]) -> Value {
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": self.stream,
        });
        if self.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }

    /// One attempt, and how long to wait before another one.
    fn attempt(
        &self,
        agent: &Agent,
        address: &str,
        body: &str,
    ) -> Result<Reply, (AskError, Option<Option<Duration>>)> {
        let mut request = agent
            .post(address)
            .header("content-type", "application/json")
            .header("accept", "text/event-stream, application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let again = |text: String| (AskError::Unusable(text), Some(None));
        let never = |text: String| (AskError::Unusable(text), None);
        let mut response = request.send(body).map_err(|e| match e {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::Tls(_) => {
                never(format!("{address}: {e}"))
            }
            ureq::Error::Timeout(_) => (
                AskError::Broken(format!("no answer within {} s", self.timeout.as_secs())),
                None,
            ),
            e => again(format!("{address}: {e}")),
        })?;
        let status = response.status().as_u16();
        if status == 200 {
            return read(&mut response).map_err(|e| (e, None));
        }
        let wait = retry_after(&response);
        let mut text = String::new();
        let _ = response
            .body_mut()
            .as_reader()
            .take(4096)
            .read_to_string(&mut text);
        let said = said_by(&text);
        let text = format!("{address} answered {status}{said}");
        match status {
            429 | 500 | 502 | 503 | 504 | 529 => Err((AskError::Unusable(text), Some(wait))),
            300..=399 => Err(never(format!(
                "{text}: redirects are not followed, give the final URL"
            ))),
            401 | 403 => Err(never(format!("{text}: is the key of --api-key-env right?"))),
            404 => Err(never(format!(
                "{text}: is the path of --endpoint right, and the name of --model?"
            ))),
            _ => Err(never(text)),
        }
    }
}

impl Model for Endpoint {
    fn name(&self) -> String {
        self.model.clone()
    }

    fn ask(&self, messages: &[Message], stop: &Stop, deadline: Instant) -> Result<Reply, AskError> {
        let address = self.address()?;
        let body = self.body(messages).to_string();
        let mut wait = self.backoff;
        for attempt in 1.. {
            let left = deadline
                .saturating_duration_since(Instant::now())
                .min(self.timeout);
            if left.is_zero() {
                return Err(AskError::Broken("no time is left".into()));
            }
            let agent = Agent::new_with_config(
                Config::builder()
                    .http_status_as_error(false)
                    .max_redirects(0)
                    .max_redirects_will_error(false)
                    .timeout_global(Some(left))
                    .timeout_connect(Some(left.min(Duration::from_secs(20))))
                    .user_agent("rocm-port")
                    .build(),
            );
            // On a thread of its own, so that Ctrl+C does not wait for the network.
            let (sender, receiver) = channel();
            let (this, there, sent) = (self.clone(), address.clone(), body.clone());
            let used = agent.clone();
            std::thread::spawn(move || tell(&sender, this.attempt(&used, &there, &sent)));
            let outcome = loop {
                match receiver.recv_timeout(Duration::from_millis(50)) {
                    Ok(outcome) => break outcome,
                    Err(RecvTimeoutError::Timeout) if stop.is_raised() => {
                        agent.shutdown();
                        return Err(AskError::Interrupted);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(AskError::Unusable("the request's thread ended".into()))
                    }
                }
            };
            match outcome {
                Ok(mut reply) => {
                    if reply.estimated {
                        let sent: usize = messages.iter().map(|m| m.content.len()).sum();
                        reply.prompt_tokens = sent as u64 / 4 + 1;
                    }
                    return Ok(reply);
                }
                Err((error, None)) => return Err(error),
                Err((error, _)) if attempt >= ATTEMPTS => return Err(error),
                Err((_, Some(asked))) => {
                    let until = Instant::now() + asked.unwrap_or(wait).min(MAX_WAIT);
                    while Instant::now() < until.min(deadline) {
                        if stop.is_raised() {
                            return Err(AskError::Interrupted);
                        }
                        std::thread::sleep(Duration::from_millis(20).min(wait));
                    }
                    wait *= 2;
                }
            }
        }
        unreachable!("the last attempt returns")
    }
}

fn tell<T>(sender: &Sender<T>, what: T) {
    // Nobody listens after Ctrl+C.
    let _ = sender.send(what);
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}
