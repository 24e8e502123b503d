//! The connections of a server: how many there may be, and how long each may take.
//!
//! A client that opens connections and sends nothing, or a byte now and then, must not keep others out. So a request's
//! head has a time limit, which goes for the wait between two requests, too, and there are only so many connections:
//! when a further one comes, the one that has waited longest for its client is closed. While all of them are at work,
//! further ones wait in the system's queue.
//!
//! A server that ends cannot take back a connection that its client keeps for the next request: that request may be on
//! its way when the connection is closed, and then is lost. So where there are such clients, the port and connections
//! stay for a while ([`Ending::linger`]), in which the routes refuse with `Connection: close`.

use axum::body::{Body, Bytes};
use axum::http::{header, Request, Response, Version};
use axum::Router;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{watch, Notify};
use tokio::task::JoinSet;
use tower_service::Service;

/// How long a request's head may take, and how long a connection may wait for the next one.
pub const HEAD_TIME: Duration = Duration::from_secs(30);
/// How long to wait after a connection could not be taken, for want of file descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What connections may take.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Most connections at once.
    pub most: usize,
    /// How long a request's head may take.
    pub head_time: Duration,
}

impl ConnectionLimits {
    /// At most `most` connections, and no more than leave this process half of its file descriptors, or all but 64.
    pub fn new(most: usize) -> Self {
        let files = crate::process::open_file_limit().unwrap_or(usize::MAX);
        Self {
            most: most.min(files.saturating_sub(64).max(files / 2)).max(1),
            head_time: HEAD_TIME,
        }
    }
}

/// How long a server that is told to stop goes on.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    /// Since when it refuses.
    pub since: Instant,
    /// How long from then on the port stays open, or from when a client last kept a connection if that is longer ago.
    pub linger: Duration,
    /// How long running requests have after that.
    pub grace: Duration,
}

/// Takes connections and serves them until `stop` resolves, which tells how long that takes.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = Ending> + Send,
    limits: ConnectionLimits,
) {
    let open = Arc::new(Open::new(limits.most));
    let (closing, closed) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let end = async {
        let ending = stop.await;
        if let Some(kept) = open.last_kept() {
            let until = kept.min(ending.since) + ending.linger;
            tokio::time::sleep_until(until.into()).await;
        }
        ending.grace
    };
    let mut end = pin!(end);
    let grace = loop {
        let next = async {
            let stream = accept(&listener).await;
            (stream, open.place().await)
        };
        let (stream, place) = tokio::select! {
            next = next => next,
            grace = &mut end => break grace,
        };
        // Those that have ended leave the set.
        while tasks.try_join_next().is_some() {}
        // Small frames go out at once; a client that is gone already is found out later.
        let _ = stream.set_nodelay(true);
        tasks.spawn(attend(
            stream,
            router.clone(),
            place,
            closed.clone(),
            limits,
        ));
    };
    drop(listener);
    // Without receivers nobody is left to tell.
    let _ = closing.send(true);
    let all = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(grace, all).await;
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::debug!("a connection could not be taken: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a connection to its end.
async fn attend(
    stream: TcpStream,
    router: Router,
    place: Place,
    mut closing: watch::Receiver<bool>,
    limits: ConnectionLimits,
) {
    let place = Arc::new(place);
    let service = service_fn(|request: Request<Incoming>| {
        let busy = Busy::new(place.clone(), keeps(&request));
        let answer = router.clone().call(request.map(Body::new));
        async move {
            let answer: Result<Response<Body>, std::convert::Infallible> = answer.await;
            answer.map(|response| response.map(|body| Occupied { body, _busy: busy }))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    http.header_read_timeout(limits.head_time);
    let mut serving = pin!(http
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades());
    let mut is_told = false;
    loop {
        tokio::select! {
            served = serving.as_mut() => {
                if let Err(error) = served {
                    tracing::trace!("a connection ended: {error}");
                }
                return;
            }
            () = place.close.notified() => return,
            // An error is the end of the server, which tells before it goes.
            _ = closing.changed(), if !is_told => {
                is_told = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Whether a client means to use the connection again.
fn keeps(request: &Request<Incoming>) -> bool {
    let says = |wanted: &str| {
        let values = request.headers().get_all(header::CONNECTION).iter();
        let mut words = (values.filter_map(|value| value.to_str().ok())).flat_map(|v| v.split(','));
        words.any(|word| word.trim().eq_ignore_ascii_case(wanted))
    };
    match request.version() {
        Version::HTTP_10 => says("keep-alive"),
        _ => !says("close"),
    }
}

/// The connections that there are.
struct Open {
    most: usize,
    state: Mutex<State>,
    /// One has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    count: usize,
    /// Those that wait for their clients, by the time since when.
    idle: BTreeMap<u64, Arc<Notify>>,
    clock: u64,
    /// Those whose clients keep them, and when the last one that is gone went.
    kept: usize,
    last_kept: Option<Instant>,
}

impl Open {
    fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::default(),
            ended: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counts stay right whatever panics elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When a client last kept a connection: now, if one does.
    fn last_kept(&self) -> Option<Instant> {
        let state = self.state();
        match state.kept {
            0 => state.last_kept,
            _ => Some(Instant::now()),
        }
    }

    /// A place for a connection, once there is one.
    async fn place(self: &Arc<Self>) -> Place {
        loop {
            let ended = self.ended.notified();
            {
                let mut state = self.state();
                if state.count < self.most {
                    state.count += 1;
                    let close = Arc::new(Notify::new());
                    let work = Mutex::new(Work {
                        requests: 0,
                        idle_since: Some(state.rest(&close)),
                        is_kept: false,
                    });
                    return Place {
                        open: self.clone(),
                        close,
                        work,
                    };
                }
                if let Some((_, close)) = state.idle.pop_first() {
                    close.notify_one();
                }
            }
            ended.await;
        }
    }
}

impl State {
    /// Notes a connection that waits from now on.
    fn rest(&mut self, close: &Arc<Notify>) -> u64 {
        self.clock += 1;
        self.idle.insert(self.clock, close.clone());
        self.clock
    }
}

/// A connection's place among all.
struct Place {
    open: Arc<Open>,
    /// Told when it is to make room.
    close: Arc<Notify>,
    work: Mutex<Work>,
}

struct Work {
    requests: usize,
    idle_since: Option<u64>,
    /// Whether its client keeps it.
    is_kept: bool,
}

impl Place {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (since, is_kept) = {
            let work = self.work();
            (work.idle_since, work.is_kept)
        };
        let mut state = self.open.state();
        state.count -= 1;
        if is_kept {
            state.kept -= 1;
            state.last_kept = Some(Instant::now());
        }
        if let Some(since) = since {
            state.idle.remove(&since);
        }
        drop(state);
        self.open.ended.notify_one();
    }
}

/// A request on a connection, until its answer has been written.
struct Busy(Arc<Place>);

impl Busy {
    fn new(place: Arc<Place>, keeps: bool) -> Self {
        let mut work = place.work();
        work.requests += 1;
        let mut state = place.open.state();
        if let Some(since) = work.idle_since.take() {
            state.idle.remove(&since);
        }
        if keeps && !work.is_kept {
            work.is_kept = true;
            state.kept += 1;
        }
        drop(state);
        drop(work);
        Self(place)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut work = self.0.work();
        work.requests -= 1;
        if work.requests == 0 {
            work.idle_since = Some(self.0.open.state().rest(&self.0.close));
        }
    }
}

/// An answer's body, whose connection is at work until it has been written.
struct Occupied {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Occupied {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    async fn start(most: usize, head_time: Duration) -> (SocketAddr, oneshot::Sender<Duration>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            "slow"
        };
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/slow", get(slow))
            .route("/say", post(|body: String| async move { body }));
        let (stop, stopped) = oneshot::channel();
        let stop_on = async {
            Ending {
                linger: stopped.await.unwrap_or_default(),
                since: Instant::now(),
                grace: Duration::from_secs(5),
            }
        };
        let limits = ConnectionLimits { most, head_time };
        tokio::spawn(serve(listener, router, stop_on, limits));
        (address, stop)
    }

    async fn ask(stream: &mut TcpStream, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut buffer = vec![0; 4096];
        let count = stream.read(&mut buffer).await.unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    }

    /// Whether a connection is closed within a while.
    async fn is_closed(stream: &mut TcpStream) -> bool {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest));
        read.await.is_ok()
    }

    #[tokio::test]
    async fn connections_that_send_nothing_end() {
        let (address, _stop) = start(100, Duration::from_millis(200)).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
        let mut kept = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut kept, "/").await.ends_with("here"));
        // Work takes as long as it takes.
        assert!(ask(&mut kept, "/slow").await.ends_with("slow"));
        let start = Instant::now();
        for stream in [&mut silent, &mut half, &mut kept] {
            assert!(is_closed(stream).await);
        }
        assert!(start.elapsed() < Duration::from_secs(4));
    }

    #[tokio::test]
    async fn idle_connections_make_room() {
        let (address, _stop) = start(4, Duration::from_secs(60)).await;
        let mut idle = Vec::new();
        for _ in 0..12 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut last = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut last, "/").await.ends_with("here"));
        assert!(is_closed(&mut idle[0]).await);
    }

    #[tokio::test]
    async fn work_is_not_cut_off_for_others() {
        let (address, _stop) = start(1, Duration::from_secs(60)).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        let first = tokio::spawn(async move { ask(&mut first, "/slow").await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut second = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut second, "/").await.ends_with("here"));
        assert!(first.await.unwrap().ends_with("slow"));
    }

    #[tokio::test]
    async fn the_end_waits_for_answers_but_not_for_idle_clients() {
        let (address, stop) = start(9, Duration::from_secs(60)).await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        let mut busy = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut idle, "/").await.ends_with("here"));
        let busy = tokio::spawn(async move { ask(&mut busy, "/slow").await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.send(Duration::ZERO).unwrap();
        assert!(is_closed(&mut idle).await);
        assert!(busy.await.unwrap().ends_with("slow"));
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn the_end_waits_for_clients_that_may_ask_again() {
        let (address, stop) = start(9, Duration::from_secs(60)).await;
        let mut kept = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut kept, "/").await.ends_with("here"));
        stop.send(Duration::from_secs(600)).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(ask(&mut kept, "/").await.ends_with("here"));
        let mut other = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut other, "/").await.ends_with("here"));
    }

    #[tokio::test]
    async fn the_end_does_not_wait_for_ever() {
        let (address, stop) = start(9, Duration::from_secs(60)).await;
        let mut kept = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut kept, "/").await.ends_with("here"));
        stop.send(Duration::from_millis(50)).unwrap();
        assert!(is_closed(&mut kept).await);
    }

    #[tokio::test]
    async fn the_end_waits_for_none_that_said_they_leave() {
        let (address, stop) = start(9, Duration::from_secs(60)).await;
        let mut leaving = TcpStream::connect(address).await.unwrap();
        let request = "GET / HTTP/1.1
Host: x
Connection: Close

";
        leaving.write_all(request.as_bytes()).await.unwrap();
        assert!(is_closed(&mut leaving).await);
        let mut silent = TcpStream::connect(address).await.unwrap();
        stop.send(Duration::from_secs(600)).unwrap();
        assert!(is_closed(&mut silent).await);
    }
}
