//! The thread that publishes.

use super::replay::{self, Kept};
use super::zmtp::{self, Came};
use super::{wire, KvEventOptions};
use crate::engine::api::{BlockEvent, BlockListener};
use axum::body::Bytes;
use std::future::Future;
use std::io;
use std::net::{TcpListener as StdListener, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc::{channel, Receiver, Sender};
use tokio::sync::Semaphore;
use worker::serve::Figure;
use worker::{Error, Result};

/// Messages that may wait for the thread, which does nothing but encode and send them: only a machine without time for
/// it has so many.
const QUEUE: usize = 10_000;
/// Messages that a subscriber may be behind; it misses the older ones.
const BEHIND: usize = 4096;
/// Clients of an endpoint; further ones wait.
const MOST_CLIENTS: usize = 64;
/// Subscriptions of a client.
const MOST_SUBSCRIPTIONS: usize = 64;
/// How long to wait after a connection could not be taken, for want of file descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Publishes what becomes of blocks, on a thread of its own. Clones are handles to the same; it ends with the last one.
#[derive(Clone)]
pub struct Publisher(Arc<Line>);

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Publisher")
    }
}

/// The way to the thread.
struct Line {
    sender: Sender<Message>,
    /// The number of the next message. Held while one is put into the queue, so that they stand there in order.
    next: Mutex<u64>,
    dropped: AtomicU64,
    missed: Arc<AtomicU64>,
}

struct Message {
    number: u64,
    /// Seconds since 1970.
    at: f64,
    events: Vec<BlockEvent>,
}

impl Publisher {
    /// Binds the endpoints and starts the thread.
    ///
    /// # Errors
    /// [`Error::Usage`] for an endpoint that cannot be bound, [`Error::Runtime`] if the system gives no thread.
    pub fn start(options: &KvEventOptions) -> Result<Self> {
        let sockets = Sockets {
            subscribers: bind(&options.endpoint, "--kv-events")?,
            replay: (options.replay.as_ref())
                .map(|endpoint| bind(endpoint, "--kv-events-replay"))
                .transpose()?,
            topic: options.topic.clone().into(),
            kept: Kept::new(options.kept),
        };
        let no_thread = |error: io::Error| {
            Error::Runtime(format!("the thread of events does not start: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(no_thread)?;
        let (sender, receiver) = channel(QUEUE);
        let missed = Arc::new(AtomicU64::new(0));
        let counter = missed.clone();
        std::thread::Builder::new()
            .name("kv-events".to_string())
            .spawn(move || {
                if let Err(error) = runtime.block_on(publish(sockets, receiver, counter)) {
                    tracing::error!("events of the cache are not published: {error}");
                }
            })
            .map_err(no_thread)?;
        Ok(Self(Arc::new(Line {
            sender,
            next: Mutex::new(0),
            dropped: AtomicU64::new(0),
            missed,
        })))
    }

    /// What an engine tells of its blocks.
    pub fn listener(&self) -> Box<dyn BlockListener> {
        Box::new(self.clone())
    }

    /// Figures for `/metrics`.
    pub fn figures(&self) -> Vec<Figure> {
        let next = *self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = self.0.dropped.load(Ordering::Relaxed);
        vec![
            Figure::counter(
                "kv_event_batches",
                "Messages about blocks of the cache that were published",
                next - dropped,
            ),
            Figure::counter(
                "kv_event_batches_dropped",
                "Messages about blocks of the cache that were dropped before they were published",
                dropped,
            ),
            Figure::counter(
                "kv_event_batches_missed",
                "Messages about blocks of the cache that a subscriber was too slow for",
                self.0.missed.load(Ordering::Relaxed),
            ),
        ]
    }
}

impl BlockListener for Publisher {
    fn tell(&mut self, events: Vec<BlockEvent>) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let line = &self.0;
        let mut next = line.next.lock().unwrap_or_else(PoisonError::into_inner);
        let message = Message {
            number: *next,
            at: since.unwrap_or_default().as_secs_f64(),
            events,
        };
        *next += 1;
        // Full, or the thread has ended.
        if line.sender.try_send(message).is_err() {
            line.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the thread works with.
struct Sockets {
    subscribers: StdListener,
    replay: Option<StdListener>,
    topic: Bytes,
    kept: Kept,
}

fn bind(endpoint: &str, option: &str) -> Result<StdListener> {
    let address = endpoint.strip_prefix("tcp://").unwrap_or(endpoint);
    let bound = || {
        let addresses: Vec<_> = address.to_socket_addrs()?.collect();
        let listener = StdListener::bind(&addresses[..])?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        tracing::info!("events of the cache: {option} at tcp://{address}");
        Ok(listener)
    };
    bound().map_err(|error: io::Error| Error::Usage(format!("{option} {endpoint}: {error}")))
}

/// Publishes until nobody can tell any more.
async fn publish(
    sockets: Sockets,
    mut receiver: Receiver<Message>,
    missed: Arc<AtomicU64>,
) -> io::Result<()> {
    let Sockets {
        subscribers,
        replay,
        topic,
        kept,
    } = sockets;
    let (sender, _) = broadcast::channel::<Bytes>(BEHIND);
    let keeps = replay.is_some();
    let (subscriptions, of_topic) = (sender.clone(), topic.clone());
    tokio::spawn(accept(TcpListener::from_std(subscribers)?, move |stream| {
        let messages = subscriptions.subscribe();
        serve_subscriber(stream, messages, of_topic.clone(), missed.clone())
    }));
    if let Some(replay) = replay {
        let kept = kept.clone();
        tokio::spawn(accept(TcpListener::from_std(replay)?, move |stream| {
            replay::answer(stream, kept.clone())
        }));
    }
    while let Some(message) = receiver.recv().await {
        let payload = match wire::encode(message.at, &message.events) {
            Ok(payload) => Bytes::from(payload),
            Err(error) => {
                tracing::error!("events of the cache: {error}");
                continue;
            }
        };
        let number = message.number.to_be_bytes();
        if keeps {
            kept.push(message.number, payload.clone());
        }
        // Nobody may listen.
        let _ = sender.send(zmtp::message(&[&topic, &number, &payload]));
        // Subscribers have a turn, too.
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Takes clients and serves so many at once.
async fn accept<F: Future<Output = io::Result<()>> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F,
) {
    let places = Arc::new(Semaphore::new(MOST_CLIENTS));
    while let Ok(place) = places.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Small messages go out at once.
                let _ = stream.set_nodelay(true);
                let serving = serve(stream);
                tokio::spawn(async move {
                    if let Err(error) = serving.await {
                        tracing::debug!("a subscriber of events is let go: {error}");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!("a subscriber of events could not be taken: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Sends a subscriber what it asks for until it goes.
async fn serve_subscriber(
    mut stream: TcpStream,
    mut messages: broadcast::Receiver<Bytes>,
    topic: Bytes,
    missed: Arc<AtomicU64>,
) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut frames = zmtp::greet(reader, &mut writer, "PUB", &["SUB", "XSUB"]).await?;
    let mut wanted: Vec<Vec<u8>> = Vec::new();
    loop {
        tokio::select! {
            came = frames.next() => match came? {
                Came::Heartbeat(pong) => zmtp::send(&mut writer, &pong).await?,
                Came::Frame(frame) => match frame.body.split_first() {
                    Some((1, topic)) if wanted.len() < MOST_SUBSCRIPTIONS => wanted.push(topic.to_vec()),
                    Some((1, _)) => return Err(io::ErrorKind::InvalidData.into()),
                    Some((0, topic)) => {
                        if let Some(place) = wanted.iter().position(|other| other == topic) {
                            wanted.swap_remove(place);
                        }
                    }
                    _ => {}
                },
            },
            message = messages.recv() => match message {
                Ok(message) => {
                    if wanted.iter().any(|prefix| topic.starts_with(prefix)) {
                        zmtp::send(&mut writer, &message).await?;
                    }
                }
                Err(RecvError::Lagged(count)) => {
                    missed.fetch_add(count, Ordering::Relaxed);
                }
                Err(RecvError::Closed) => return Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn options(port: u16) -> KvEventOptions {
        KvEventOptions {
            endpoint: format!("tcp://127.0.0.1:{port}"),
            replay: None,
            topic: String::new(),
            kept: 1,
        }
    }

    #[test]
    fn a_port_in_use_is_told() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let started = Publisher::start(&options(taken.local_addr().unwrap().port()));
        let error = started.err().unwrap();
        assert!(error.to_string().contains("--kv-events tcp://"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn nobody_is_waited_for() {
        let (sender, _receiver) = channel(2);
        let mut publisher = Publisher(Arc::new(Line {
            sender,
            next: Mutex::new(0),
            dropped: AtomicU64::new(0),
            missed: Arc::default(),
        }));
        // The thread does not come to it: two wait, the others are dropped.
        for _ in 0..5 {
            publisher.tell(vec![BlockEvent::Cleared]);
        }
        assert_eq!(publisher.0.dropped.load(Ordering::Relaxed), 3);
        assert_eq!(*publisher.0.next.lock().unwrap(), 5);
    }
}
