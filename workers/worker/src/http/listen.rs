//! Address, limits, rules for browsers, and serving until told to stop.

use super::body::attend;
use super::callers::Callers;
use super::connections::ConnectionLimits;
use super::ApiKeys;
use crate::observe::headers::{TRACEPARENT, TRACESTATE, X_REQUEST_ID};
use crate::signal::EXIT_INTERRUPTED;
use crate::{Error, Result};
use axum::extract::DefaultBodyLimit;
use axum::http::{header, HeaderName, HeaderValue, Method};
use axum::middleware::from_fn_with_state;
use axum::Router;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::oneshot;
use tower_http::cors::{AllowOrigin, CorsLayer};

/// Where and for whom to serve. Flags of the command line, each also from the environment.
#[derive(Debug, Clone, clap::Args)]
pub struct ListenOptions {
    /// Address to listen on; 0.0.0.0 or :: lets other machines in.
    #[arg(
        long,
        env = "WORKER_HOST",
        default_value = "127.0.0.1",
        value_name = "ADDRESS"
    )]
    pub host: IpAddr,

    /// Port; 0 takes a free one and tells it.
    #[arg(long, env = "PORT", default_value_t = 8080, value_name = "N")]
    pub port: u16,

    /// A key that clients must send as `Authorization: Bearer KEY` or `X-Api-Key: KEY`, or as the password of HTTP's basic
    /// authentication (NAME:PASSWORD is a key for this one name); may be given several times, and
    /// several at once with commas between them. Other users of this machine see it in the list of processes: the variable or a file hide it.
    #[arg(
        long = "api-key",
        env = "LLORCH_API_TOKEN",
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub api_keys: Vec<String>,

    /// A file with further keys, one a line; may be given several times.
    #[arg(
        long = "api-key-file",
        env = "WORKER_API_KEY_FILE",
        value_name = "FILE"
    )]
    pub api_key_files: Vec<PathBuf>,

    /// A name by which clients reach a server without a key, besides this machine's, names without a dot, and
    /// addresses; *.example.org is all names below, `*` any name.
    #[arg(
        long = "allowed-host",
        env = "WORKER_ALLOWED_HOST",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    pub allowed_hosts: Vec<String>,

    /// Web origin whose pages may call this server, for example https://example.org; `*` is any.
    #[arg(
        long = "cors-origin",
        env = "WORKER_CORS_ORIGIN",
        value_delimiter = ',',
        value_name = "ORIGIN"
    )]
    pub cors_origins: Vec<String>,

    /// Longest request body in bytes.
    #[arg(long, env = "WORKER_MAX_BODY_BYTES", default_value_t = 16 << 20, value_name = "N")]
    pub max_body_bytes: usize,

    /// Most connections at once; no more than the limit of open files leaves room for.
    #[arg(
        long,
        env = "WORKER_MAX_CONNECTIONS",
        default_value_t = 1024,
        value_name = "N"
    )]
    pub max_connections: usize,

    /// Seconds that running requests have to finish when the server is told to stop.
    #[arg(
        long,
        env = "WORKER_SHUTDOWN_GRACE",
        default_value_t = 30,
        value_name = "SECONDS"
    )]
    pub shutdown_grace: u64,

    /// Seconds that a server that is told to stop still refuses with 503, while clients keep connections to it open:
    /// time for a router to look and to send its requests elsewhere. Give it the time between two of its looks.
    #[arg(
        long,
        env = "WORKER_SHUTDOWN_LINGER",
        default_value_t = 1,
        value_name = "SECONDS"
    )]
    pub shutdown_linger: u64,
}

impl ListenOptions {
    /// Opens the port.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is taken or not allowed.
    pub async fn bind(&self) -> Result<TcpListener> {
        let address = SocketAddr::new(self.host, self.port);
        TcpListener::bind(address).await.map_err(|e| {
            Error::Usage(format!(
                "cannot listen on {address}: {e}; choose another --host or --port"
            ))
        })
    }

    /// The keys that open the server.
    ///
    /// # Errors
    /// [`Error::Usage`] for a file of keys that cannot be read or holds none.
    pub fn keys(&self) -> Result<ApiKeys> {
        let mut keys = self.api_keys.clone();
        for file in &self.api_key_files {
            keys.extend(ApiKeys::read(file)?);
        }
        Ok(ApiKeys::new(keys))
    }

    /// The same limits for a parent only, which has these keys.
    pub(crate) fn for_parent(&self, keys: &[String]) -> Self {
        Self {
            api_keys: keys.to_vec(),
            api_key_files: Vec::new(),
            cors_origins: Vec::new(),
            // It stops a model only when it asks nothing more of it.
            shutdown_linger: 0,
            ..self.clone()
        }
    }

    /// Adds the limits of bodies, and the rules for browsers, to a router whose routes take `methods`.
    ///
    /// # Errors
    /// [`Error::Usage`] for an origin that is none, or a file of keys that cannot be read.
    pub fn limit(
        &self,
        router: Router,
        methods: impl IntoIterator<Item = Method>,
    ) -> Result<Router> {
        let keyed = !self.keys()?.is_open();
        let callers = Callers::new(&self.allowed_hosts, &self.cors_origins, keyed);
        let router = router
            .layer(DefaultBodyLimit::max(self.max_body_bytes))
            .layer(from_fn_with_state(callers, attend));
        if self.cors_origins.is_empty() {
            return Ok(router);
        }
        let origins = if self.cors_origins.iter().any(|origin| origin == "*") {
            AllowOrigin::any()
        } else {
            let parse = |origin: &String| {
                HeaderValue::from_str(origin).map_err(|_| {
                    Error::Usage(format!("--cors-origin {origin:?} is not a web origin"))
                })
            };
            AllowOrigin::list(
                self.cors_origins
                    .iter()
                    .map(parse)
                    .collect::<Result<Vec<_>>>()?,
            )
        };
        Ok(router.layer(
            CorsLayer::new()
                .allow_origin(origins)
                .allow_methods(methods.into_iter().collect::<Vec<_>>())
                .allow_headers([
                    header::AUTHORIZATION,
                    header::CONTENT_TYPE,
                    HeaderName::from_static("x-api-key"),
                    X_REQUEST_ID,
                    TRACEPARENT,
                    TRACESTATE,
                ])
                .expose_headers([X_REQUEST_ID]),
        ))
    }

    /// What connections may take.
    pub fn connections(&self) -> ConnectionLimits {
        ConnectionLimits::new(self.max_connections)
    }

    /// Time that running requests have to finish.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.shutdown_grace)
    }

    /// Time for clients that keep their connections to see that the server stops.
    pub fn linger(&self) -> Duration {
        Duration::from_secs(self.shutdown_linger)
    }
}

/// Resolves at the first SIGINT or SIGTERM. A second one ends the process at once, unless `is_supervised`: then the
/// first may come twice, from the supervisor and from who signals all processes, and a supervisor kills.
///
/// # Errors
/// [`Error::Runtime`] if signals cannot be handled.
pub fn termination(is_supervised: bool) -> Result<impl Future<Output = ()> + Send> {
    let listen = |kind| signal(kind).map_err(|e| Error::Runtime(format!("signals: {e}")));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let (sender, first) = oneshot::channel();
    tokio::spawn(async move {
        let mut sender = Some(sender);
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            match sender.take() {
                // Nobody waits for it only while the process ends anyway.
                Some(sender) => drop(sender.send(())),
                None if is_supervised => {}
                // Exit handlers would take the GPU's runtime down under the threads that use it.
                None => signal_hook::low_level::exit(EXIT_INTERRUPTED.into()),
            }
        }
    });
    Ok(async move {
        if first.await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
