//! Passing a request on to a model's process, and its answer back: as it comes, and no longer than somebody wants it.

use super::child::Child;
use super::lease::Lease;
use crate::http::error::RESTARTING;
use crate::http::sse::{Encoding, Protocol};
use crate::http::ApiError;
use crate::observe::RequestScope;
use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Request, Response, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Headers that are about one connection (RFC 9110, 7.6.1), and those that we replace.
const OF_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];
/// The keys of the server, which are none of the model's business.
const KEYS: [HeaderName; 2] = [header::AUTHORIZATION, HeaderName::from_static("x-api-key")];
/// Longest answer that is read whole.
const MAX_WHOLE: usize = 32 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The process was not reached: it knows nothing of the request.
    Unreached(String),
    /// It was reached, and went away.
    Lost(String),
}

impl Trouble {
    /// As an answer.
    pub(super) fn error(&self, name: &str) -> ApiError {
        let (Self::Unreached(reason) | Self::Lost(reason)) = self;
        ApiError {
            retry_after: Some(Duration::from_secs(1)),
            ..ApiError::unavailable(RESTARTING, went_away(name, reason))
        }
    }
}

fn went_away(name: &str, reason: &str) -> String {
    format!("the process of model {name} went away: {reason}")
}

/// Ends a connection when it is dropped, so that the other side learns that nobody reads any more.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Removes what is about one connection.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = (headers.get_all(header::CONNECTION).iter())
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in OF_CONNECTION.iter().chain(&named) {
        headers.remove(name);
    }
}

/// Sends a request with its whole body.
async fn send(
    child: &Child,
    caller: u64,
    parts: &Parts,
    body: Bytes,
) -> Result<(Response<Incoming>, Connection), Trouble> {
    let unreached = |e: &dyn std::fmt::Display| Trouble::Unreached(e.to_string());
    let stream = TcpStream::connect(child.address)
        .await
        .map_err(|e| unreached(&e))?;
    // Small frames go out at once; without it they come late, no more.
    let _ = stream.set_nodelay(true);
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|e| unreached(&e))?;
    let task = tokio::spawn(async move {
        // Its requests tell of its end.
        let _ = connection.await;
    });
    let connection = Connection(task);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let uri: Uri = path
        .parse()
        .map_err(|e: axum::http::uri::InvalidUri| unreached(&e))?;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    *headers = parts.headers.clone();
    strip(headers);
    for name in KEYS.iter().chain([&header::CONTENT_LENGTH]) {
        headers.remove(name);
    }
    if !headers.contains_key(header::HOST) {
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
    }
    if let Some(scope) = RequestScope::current() {
        scope.pass_on(headers);
    }
    RequestScope::note(|figures| figures.model = Some(child.name.clone()));
    let key = HeaderValue::from_str(&format!("Bearer {}", child.key(caller)));
    headers.insert(header::AUTHORIZATION, key.map_err(|e| unreached(&e))?);
    match sender.send_request(request).await {
        Ok(response) => Ok((response, connection)),
        Err(error) => Err(Trouble::Lost(error.to_string())),
    }
}

/// Passes a request on; its answer comes as the process gives it, and tells by `protocol` if that goes away in the
/// middle of a stream.
///
/// # Errors
/// Why there is no answer.
pub(super) async fn pass(
    child: &Child,
    lease: Option<Lease>,
    caller: u64,
    parts: &Parts,
    body: Bytes,
    protocol: Protocol,
) -> Result<Response<Body>, Trouble> {
    let (response, connection) = send(child, caller, parts, body).await?;
    let (mut parts, body) = response.into_parts();
    strip(&mut parts.headers);
    let kind = parts
        .headers
        .get(header::CONTENT_TYPE)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    let streams: &[u8] = match protocol.encoding {
        Encoding::Events => b"text/event-stream",
        Encoding::Lines => b"application/x-ndjson",
    };
    let failure = kind.starts_with(streams).then(|| {
        let message = went_away(&child.name, "its answer ends here");
        protocol.failure_text(&ApiError::unavailable(RESTARTING, message))
    });
    let body = Watched {
        body,
        failure,
        blank: true,
        has_failed: false,
        _lease: lease,
        _connection: connection,
    };
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// Asks a process for something small on our own account: status, content.
///
/// # Errors
/// Why there is no answer.
pub(super) async fn ask(
    child: &Child,
    request: Request<Bytes>,
    patience: Duration,
) -> Result<(u16, Bytes), Trouble> {
    let (parts, body) = request.into_parts();
    let asked = async {
        let (response, connection) = send(child, 0, &parts, body).await?;
        let status = response.status().as_u16();
        let whole = axum::body::to_bytes(Body::new(response.into_body()), MAX_WHOLE).await;
        drop(connection);
        whole
            .map(|bytes| (status, bytes))
            .map_err(|e| Trouble::Lost(e.to_string()))
    };
    match tokio::time::timeout(patience, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(Trouble::Lost(format!(
            "no answer within {} s",
            patience.as_secs_f32()
        ))),
    }
}

/// An answer on its way.
struct Watched {
    body: Incoming,
    /// What a stream says if the process goes away.
    failure: Option<String>,
    /// Whether what was sent ends with a line.
    blank: bool,
    has_failed: bool,
    _lease: Option<Lease>,
    _connection: Connection,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.has_failed {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(last) = frame.data_ref().and_then(|bytes| bytes.last()) {
                    self.blank = *last == b'\n';
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => match self.failure.take() {
                Some(failure) => {
                    self.has_failed = true;
                    // What was cut off in the middle ends first.
                    let start = if self.blank { "" } else { "\n\n" };
                    Poll::Ready(Some(Ok(Frame::data(format!("{start}{failure}").into()))))
                }
                None => Poll::Ready(Some(Err(error))),
            },
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_failed || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_are_dropped() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("x-request-id", "7"),
            ("content-type", "application/json"),
        ] {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        strip(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-type", "x-request-id"]);
    }
}
