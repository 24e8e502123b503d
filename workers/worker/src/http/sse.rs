//! Streams of server-sent events, or of lines of JSON, that never end without saying so.
//!
//! The frames of an answer are made by a future that sends them into a [`Frames`]. Whatever becomes of it, the client
//! sees how it ended: success ends with the protocol's last frame, an error or a panic with the protocol's error frame
//! before it. The future lives in the answer's body: when the client goes away, it is dropped with everything that it
//! holds, such as a request to the engine.

use super::blocking::panic_text;
use super::ApiError;
use axum::body::Body as HttpBody;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde::Serialize;
use std::any::Any;
use std::convert::Infallible;
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;

/// Frames that may wait for a slow client.
const WAITING_FRAMES: usize = 16;
/// A comment after this silence keeps proxies from closing the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A part of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The event's name, where it has one.
    name: Option<String>,
    /// JSON.
    data: String,
}

impl Frame {
    fn event(self) -> Event {
        let event = Event::default();
        let event = match self.name {
            Some(name) => event.event(name),
            None => event,
        };
        event.data(self.data)
    }

    fn line(self) -> String {
        self.data + "\n"
    }
}

/// How frames are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `text/event-stream`.
    Events,
    /// `application/x-ndjson`: a line of JSON for each, without names.
    Lines,
}

/// How a kind of stream tells a failure and its end.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    /// How frames are written.
    pub encoding: Encoding,
    /// The frame for an error.
    pub failure: fn(&ApiError) -> Frame,
    /// Data of the very last frame, after success and after an error.
    pub done: Option<&'static str>,
}

/// OpenAI's streams: an error is its body as data, the last frame is `[DONE]`.
pub const OPENAI: Protocol = Protocol {
    encoding: Encoding::Events,
    failure: |error| data(&error.to_json()),
    done: Some("[DONE]"),
};

impl Protocol {
    /// The last words of a stream that somebody else wrote: the error, and the end.
    pub(crate) fn failure_text(&self, error: &ApiError) -> String {
        let frame = (self.failure)(error);
        let done = self.done.map(|done| Frame {
            name: None,
            data: done.to_string(),
        });
        let mut text = String::new();
        for frame in std::iter::once(frame).chain(done) {
            match (self.encoding, frame.name) {
                (Encoding::Lines, _) => text.push_str(&format!("{}\n", frame.data)),
                (Encoding::Events, None) => text.push_str(&format!("data: {}\n\n", frame.data)),
                (Encoding::Events, Some(name)) => {
                    text.push_str(&format!("event: {name}\ndata: {}\n\n", frame.data));
                }
            }
        }
        text
    }
}

/// A frame that is data only.
pub fn data(value: &impl Serialize) -> Frame {
    Frame {
        name: None,
        data: to_json(value),
    }
}

/// A frame with a name.
pub fn named(name: &str, value: &impl Serialize) -> Frame {
    Frame {
        name: Some(name.to_string()),
        data: to_json(value),
    }
}

fn to_json(value: &impl Serialize) -> String {
    // Only maps with other keys than strings cannot be written; no frame has one.
    serde_json::to_string(value).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
}

/// Where a producer puts its frames.
#[derive(Debug, Clone)]
pub struct Frames(mpsc::Sender<Frame>);

impl Frames {
    /// Sends a frame, waiting while the client is slow.
    pub async fn send(&self, frame: Frame) {
        // The receiver lives in the same body as the producer: without it, nobody is here to send.
        let _ = self.0.send(frame).await;
    }
}

/// An answer whose frames are made by the future that `produce` returns.
pub fn stream<F, P>(protocol: Protocol, produce: P) -> Response
where
    P: FnOnce(Frames) -> F,
    F: Future<Output = Result<(), ApiError>> + Send + 'static,
{
    let (sender, frames) = mpsc::channel(WAITING_FRAMES);
    let producer: Producer = Box::pin(produce(Frames(sender)));
    match protocol.encoding {
        Encoding::Events => Sse::new(Body::new(frames, producer, protocol, Frame::event))
            .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
            .into_response(),
        Encoding::Lines => {
            let body = Body::new(frames, producer, protocol, Frame::line);
            let kind = [(CONTENT_TYPE, "application/x-ndjson")];
            (kind, HttpBody::from_stream(body)).into_response()
        }
    }
}

type Producer = Pin<Box<dyn Future<Output = Result<(), ApiError>> + Send>>;

struct Body<T> {
    frames: mpsc::Receiver<Frame>,
    producer: Option<Producer>,
    /// What follows the producer's frames, last first.
    last: Vec<Frame>,
    protocol: Protocol,
    encode: fn(Frame) -> T,
}

impl<T> Body<T> {
    fn new(
        frames: mpsc::Receiver<Frame>,
        producer: Producer,
        protocol: Protocol,
        encode: fn(Frame) -> T,
    ) -> Self {
        Self {
            frames,
            producer: Some(producer),
            last: Vec::new(),
            protocol,
            encode,
        }
    }
}

impl<T> Stream for Body<T> {
    type Item = Result<T, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        // The producer first: it may fill the channel, and frees its room when polled again.
        if let Some(producer) = &mut this.producer {
            let polled = catch_unwind(AssertUnwindSafe(|| producer.as_mut().poll(context)));
            let result = match polled {
                Ok(Poll::Pending) => None,
                Ok(Poll::Ready(result)) => Some(result),
                Err(panic) => Some(Err(panicked(&*panic))),
            };
            if let Some(result) = result {
                this.producer = None;
                this.last.extend(this.protocol.done.map(|done| Frame {
                    name: None,
                    data: done.to_string(),
                }));
                if let Err(error) = result {
                    error.note();
                    this.last.push((this.protocol.failure)(&error));
                }
            }
        }
        if this.producer.is_some() {
            return match this.frames.poll_recv(context) {
                Poll::Ready(Some(frame)) => Poll::Ready(Some(Ok((this.encode)(frame)))),
                _ => Poll::Pending,
            };
        }
        // Not `poll_recv`: tokio lets a busy task wait although frames are there, which is not the end. The producer
        // may have left a sender with somebody else; after its end nothing more counts.
        let frame = this.frames.try_recv().ok();
        let frame = frame.or_else(|| this.last.pop());
        Poll::Ready(frame.map(|frame| Ok((this.encode)(frame))))
    }
}

fn panicked(panic: &(dyn Any + Send)) -> ApiError {
    ApiError::internal(format!("internal error: {}", panic_text(panic)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;

    async fn text(response: Response) -> String {
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn success_ends_with_the_last_frame() {
        let response = stream(OPENAI, |frames| async move {
            for i in 0..3 * WAITING_FRAMES {
                frames.send(data(&i)).await;
            }
            Ok(())
        });
        let text = text(response).await;
        assert_eq!(text.matches("data: ").count(), 3 * WAITING_FRAMES + 1);
        assert!(text.ends_with("data: 47\n\ndata: [DONE]\n\n"), "{text}");
    }

    #[tokio::test]
    async fn lines_of_json() {
        const LINES: Protocol = Protocol {
            encoding: Encoding::Lines,
            failure: |error| data(&error.message),
            done: None,
        };
        let response = stream(LINES, |frames| async move {
            frames.send(data(&"a\nb")).await;
            frames.send(named("unseen", &2)).await;
            Err(ApiError::internal("broken"))
        });
        assert_eq!(response.headers()[CONTENT_TYPE], "application/x-ndjson");
        assert_eq!(text(response).await, "\"a\\nb\"\n2\n\"broken\"\n");
    }

    #[tokio::test]
    async fn a_busy_task_loses_no_frame() {
        // Around the number of operations after which tokio lets a task wait, whatever is there.
        for count in 0..300 {
            let response = stream(OPENAI, move |frames| async move {
                for i in 0..count {
                    frames.send(data(&i)).await;
                }
                Ok(())
            });
            let text = text(response).await;
            assert_eq!(text.matches("data: ").count(), count + 1, "{text}");
        }
    }

    #[tokio::test]
    async fn errors_and_panics_are_told() {
        let failing = stream(OPENAI, |frames| async move {
            frames.send(data(&1)).await;
            Err(ApiError::internal("broken"))
        });
        let panicking = stream(OPENAI, |frames| async move {
            frames.send(data(&1)).await;
            panic!("broken {}", 2)
        });
        for response in [failing, panicking] {
            let text = text(response).await;
            let frames: Vec<_> = text.split_terminator("\n\n").collect();
            assert_eq!(frames.len(), 3, "{text}");
            assert!(frames[1].contains("\"message\"") && frames[1].contains("broken"));
            assert_eq!(frames[2], "data: [DONE]");
        }
    }

    #[tokio::test]
    async fn dropping_the_body_drops_the_producer() {
        let held = std::sync::Arc::new(());
        let inside = held.clone();
        let response = stream(OPENAI, |_frames| async move {
            let _inside = inside;
            std::future::pending().await
        });
        assert_eq!(std::sync::Arc::strong_count(&held), 2);
        drop(response);
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }
}
