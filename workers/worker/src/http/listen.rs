//! Address, limits, cross-origin rules, and serving until told to stop.

use crate::signal::EXIT_INTERRUPTED;
use crate::{Error, Result};
use axum::extract::DefaultBodyLimit;
use axum::http::{header, HeaderValue, Method};
use axum::Router;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
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

    /// A key that clients must send as `Authorization: Bearer KEY`; may be given several times.
    #[arg(
        long = "api-key",
        env = "LLORCH_API_TOKEN",
        hide_env_values = true,
        value_name = "KEY"
    )]
    pub api_keys: Vec<String>,

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

    /// Seconds that running requests have to finish when the server is told to stop.
    #[arg(
        long,
        env = "WORKER_SHUTDOWN_GRACE",
        default_value_t = 30,
        value_name = "SECONDS"
    )]
    pub shutdown_grace: u64,
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

    /// Adds body limit and cross-origin rules to a router whose routes take `methods`.
    ///
    /// # Errors
    /// [`Error::Usage`] for an origin that is none.
    pub fn limit(
        &self,
        router: Router,
        methods: impl IntoIterator<Item = Method>,
    ) -> Result<Router> {
        let router = router.layer(DefaultBodyLimit::max(self.max_body_bytes));
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
                .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE]),
        ))
    }

    /// Time that running requests have to finish.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.shutdown_grace)
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

/// Serves until `stop` resolves, then lets running answers finish for at most `limit`; the rest is cut off.
///
/// What makes answers long must end them within `limit` by itself, so that clients see why.
///
/// # Errors
/// [`Error::Runtime`] if the listener fails.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
    limit: Duration,
) -> Result<()> {
    let (stopping, stopped) = oneshot::channel::<()>();
    let stop = async move {
        stop.await;
        drop(stopping);
    };
    let server = std::future::IntoFuture::into_future(
        axum::serve(listener, router).with_graceful_shutdown(stop),
    );
    let cut_off = async {
        let _ = stopped.await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        result = server => result.map_err(|e| Error::Runtime(format!("the HTTP server failed: {e}"))),
        () = cut_off => Ok(()),
    }
}
