//! What comes with every request: whether it may come, how fast its body must, and what it leaves behind.

use super::callers::Callers;
use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{sleep_until, Instant, Sleep};

/// How fast bodies must come.
const PACE: Pace = Pace {
    time: Duration::from_secs(30),
    bytes_per_second: 8 << 10,
};
/// After a request with a longer body, memory that was freed goes back to the system.
const LARGE_BODY: u64 = 256 << 10;
/// How long after it: several requests are tidied up after at once.
const TIDY_AFTER: Duration = Duration::from_millis(500);

/// How fast a body must come.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// It may take this long whatever its length, …
    time: Duration,
    /// … and longer as long as so many bytes of it come in each second.
    bytes_per_second: u64,
}

/// A body that came too slowly.
#[derive(Debug, thiserror::Error)]
#[error(
    "the body came too slowly: it has {} seconds, and longer at {} bytes a second",
    .0.time.as_secs(), .0.bytes_per_second
)]
pub(super) struct TooSlow(Pace);

/// For [`axum::middleware::from_fn_with_state`]: refuses pages that may not call, limits the time of a body, and gives
/// memory back after a large one.
pub(super) async fn attend(
    State(callers): State<Callers>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(error) = callers.check(request.method(), request.uri(), request.headers()) {
        tracing::debug!(path = request.uri().path(), "refused: {}", error.message);
        return error.into_response();
    }
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let received = Arc::new(AtomicU64::new(0));
    let timed = |body: Body| Body::from_stream(TimedBody::new(body, received.clone(), PACE));
    let response = next.run(request.map(timed)).await;
    if received.load(Ordering::Relaxed) > LARGE_BODY {
        tidy();
    }
    response
}

/// Gives memory back to the system in a moment.
fn tidy() {
    static DUE: AtomicBool = AtomicBool::new(false);
    if DUE.swap(true, Ordering::Relaxed) {
        return;
    }
    tokio::spawn(async {
        tokio::time::sleep(TIDY_AFTER).await;
        DUE.store(false, Ordering::Relaxed);
        // Nobody waits for it.
        drop(tokio::task::spawn_blocking(
            crate::process::give_memory_back,
        ));
    });
}

/// A body that ends with [`TooSlow`] when it comes too slowly.
struct TimedBody {
    body: BodyDataStream,
    received: Arc<AtomicU64>,
    pace: Pace,
    start: Instant,
    timer: Pin<Box<Sleep>>,
}

impl TimedBody {
    fn new(body: Body, received: Arc<AtomicU64>, pace: Pace) -> Self {
        let start = Instant::now();
        Self {
            body: body.into_data_stream(),
            received,
            pace,
            start,
            timer: Box::pin(sleep_until(start + pace.time)),
        }
    }
}

impl Stream for TimedBody {
    type Item = Result<Bytes, axum::BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match Pin::new(&mut self.body).poll_next(context) {
            Poll::Ready(Some(Ok(bytes))) => {
                let count = bytes.len() as u64;
                let received = self.received.fetch_add(count, Ordering::Relaxed) + count;
                let more = Duration::from_millis(received * 1000 / self.pace.bytes_per_second);
                let by = self.start + self.pace.time + more;
                self.timer.as_mut().reset(by);
                Poll::Ready(Some(Ok(bytes)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match self.timer.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Some(Err(TooSlow(self.pace).into()))),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::JsonBody;
    use axum::extract::FromRequest;
    use serde_json::Value;
    use tokio::sync::mpsc;

    /// Bytes as they come through a channel.
    struct Sent(mpsc::Receiver<Bytes>);

    impl Stream for Sent {
        type Item = Result<Bytes, std::convert::Infallible>;

        fn poll_next(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Self::Item>> {
            self.0.poll_recv(context).map(|bytes| bytes.map(Ok))
        }
    }

    /// What becomes of a body of 40 spaces and a number that comes in `parts`, 20 ms apart.
    async fn read(parts: usize, pace: Pace) -> Result<Value, crate::http::ApiError> {
        let (sender, receiver) = mpsc::channel(1);
        let body = format!("{:>40}", 7);
        tokio::spawn(async move {
            for part in body.as_bytes().chunks(body.len() / parts) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                if sender.send(Bytes::copy_from_slice(part)).await.is_err() {
                    return;
                }
            }
        });
        let body = Body::from_stream(Sent(receiver));
        let timed = TimedBody::new(body, Arc::default(), pace);
        let request = Request::new(Body::from_stream(timed));
        let JsonBody(value) = JsonBody::from_request(request, &()).await?;
        Ok(value)
    }

    #[tokio::test]
    async fn bodies_that_dribble_are_given_up() {
        let time = Duration::from_millis(200);
        let slow = Pace {
            time,
            bytes_per_second: 1_000_000,
        };
        let refused = read(40, slow).await.unwrap_err();
        assert_eq!(
            (refused.status.as_u16(), refused.code),
            (408, "BODY_TOO_SLOW")
        );
        // Few parts are quick enough, and so are many whose bytes count for something.
        assert_eq!(
            read(
                2,
                Pace {
                    time: Duration::from_secs(5),
                    ..slow
                }
            )
            .await,
            Ok(7.into())
        );
        assert_eq!(
            read(
                40,
                Pace {
                    time,
                    bytes_per_second: 1
                }
            )
            .await,
            Ok(7.into())
        );
    }
}
