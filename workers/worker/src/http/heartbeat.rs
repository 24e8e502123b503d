//! The worker's sign of life to its orchestrator.

use crate::{Error, Result};
use serde_json::Value;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::time::Duration;

/// Time between two signs of life; an orchestrator gives a worker up after three of them.
pub const INTERVAL: Duration = Duration::from_secs(30);
/// An orchestrator that does not answer within this time is tried again at the next beat.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Where the orchestrator takes them.
const PATH: &str = "/v1/worker-heartbeat";

/// Posts `body()` to `{base}/v1/worker-heartbeat` now and then at every interval, until dropped.
#[derive(Debug)]
pub struct Heartbeat {
    _stop: Sender<()>,
}

impl Heartbeat {
    /// Starts the heart in a thread of its own, so that it beats while the worker is busy.
    ///
    /// # Errors
    /// [`Error::Usage`] if `base` is no HTTP address.
    pub fn start(
        base: &str,
        interval: Duration,
        body: impl Fn() -> Value + Send + 'static,
    ) -> Result<Self> {
        if !(base.starts_with("http://") || base.starts_with("https://")) {
            return Err(Error::Usage(format!(
                "{base:?} is not an address for heartbeats; it must begin with http:// or https://"
            )));
        }
        let url = format!("{}{PATH}", base.trim_end_matches('/'));
        let agent = ureq::Agent::new_with_config(
            ureq::config::Config::builder()
                .timeout_global(Some(TIMEOUT))
                .build(),
        );
        let (stop, stopped) = channel::<()>();
        std::thread::Builder::new()
            .name("heartbeat".to_string())
            .spawn(move || {
                let mut failing = false;
                loop {
                    let sent = agent
                        .post(&url)
                        .header("Content-Type", "application/json")
                        .send(body().to_string());
                    // Once at each change: a missing orchestrator must not fill the log.
                    match (&sent, failing) {
                        (Err(error), false) => {
                            tracing::warn!("no heartbeat at {url}: {error}; trying on");
                        }
                        (Ok(_), true) => tracing::info!("{url} takes heartbeats again"),
                        _ => {}
                    }
                    failing = sent.is_err();
                    match stopped.recv_timeout(interval) {
                        Err(RecvTimeoutError::Timeout) => {}
                        _ => return,
                    }
                }
            })
            .map_err(|e| Error::Runtime(format!("cannot start a thread: {e}")))?;
        Ok(Self { _stop: stop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// Answers one request with a status and returns its first line and body.
    fn answer(stream: TcpStream, status: &str) -> (String, String) {
        let mut reader = BufReader::new(stream);
        let (mut first, mut length) = (String::new(), 0);
        reader.read_line(&mut first).unwrap();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let reply = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        reader.get_mut().write_all(reply.as_bytes()).unwrap();
        (first.trim().to_string(), String::from_utf8(body).unwrap())
    }

    #[test]
    fn it_beats_on_after_a_refusal() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        let body = || serde_json::json!({"worker": 7});
        let heart = Heartbeat::start(&base, Duration::from_millis(5), body).unwrap();
        for status in ["500 No", "200 OK", "200 OK"] {
            let (first, body) = answer(listener.accept().unwrap().0, status);
            assert_eq!(first, "POST /v1/worker-heartbeat HTTP/1.1");
            assert_eq!(body, "{\"worker\":7}");
        }
        drop(heart);
        Heartbeat::start("ftp://x", INTERVAL, body).unwrap_err();
    }
}
