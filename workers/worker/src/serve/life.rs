//! From an open port to a graceful end.

use super::supervise::parent::supervise;
use super::systemd;
use super::{
    health, router, DeviceInfo, Failed, Identity, Served, ServerArgs, Supervisor, Unready, Worker,
    FAILED, LISTENING,
};
use crate::cli::output::print_line;
use crate::device::DeviceRequest;
use crate::fault::OutOfMemory;
use crate::http::connections::{serve, Ending};
use crate::http::listen::termination;
use crate::http::{heartbeat, Heartbeat, ListenOptions};
use crate::{Error, Result};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Threads that answer HTTP; what computes has its own.
const HTTP_THREADS: usize = 4;
/// How often the device is looked after.
const LOST_POLL: Duration = Duration::from_secs(1);
/// How long `/health` tells that the device is lost before the process ends.
const LOST_LINGER: Duration = Duration::from_secs(10);
/// The same where a supervisor tells it, too, and starts the next process, or other hosts wait for this one's end.
const LOST_LINGER_SHORT: Duration = Duration::from_secs(1);
/// Answers have this long to reach their clients once their computations have ended.
const LAST_FRAMES: Duration = Duration::from_secs(5);

/// Calls `serve`, which is to select the device and to [`start`]; where the arguments and the device ask for it, in a
/// process of its own that this one starts anew when it crashes.
///
/// # Errors
/// Those of `serve`; [`Error::Usage`] if the port cannot be opened; [`Error::Ended`] with the exit code of the process
/// that served, [`Error::Crashed`] after too many crashes.
pub fn supervised(
    args: &ServerArgs,
    device: DeviceRequest,
    serve: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match Supervisor::of_environment()? {
        Some(supervisor) => {
            supervisor.begin()?;
            serve()
        }
        None if args.supervise.is_wanted(device) => {
            supervise(&args.listen, args.worker_id(), &args.supervise)
        }
        None => serve(),
    }
}

/// Opens the port, or takes the supervisor's, makes the worker, sends its heartbeats, loads, and serves until a signal, a failure, or the loss of
/// the device.
///
/// `load` runs on a thread of its own and tells [`super::Progress`] how far it is.
///
/// # Errors
/// [`Error::Usage`] if the port cannot be opened, and those of [`run`].
pub fn start<W: Worker>(
    args: &ServerArgs,
    device: DeviceInfo,
    make: impl FnOnce(Identity) -> Arc<W>,
    load: impl FnOnce(&W) -> Result<W::Loaded> + Send + 'static,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .enable_all()
        .build()
        .map_err(|e| Error::Runtime(format!("cannot start threads: {e}")))?;
    let supervisor = Supervisor::of_environment()?;
    let worker_id = (supervisor.as_ref()).map_or_else(|| args.worker_id(), |s| s.worker_id.clone());
    let traces = args.traces.start(W::NAME, W::VERSION, &worker_id)?;
    let sending = traces.clone();
    let result = runtime.block_on(async {
        let listener = match &supervisor {
            Some(supervisor) => TcpListener::from_std(supervisor.listener()?)
                .map_err(|e| Error::Runtime(format!("the supervisor's port: {e}")))?,
            None => args.listen.bind().await?,
        };
        let address = listener
            .local_addr()
            .map_err(|e| Error::Runtime(format!("the port that was opened: {e}")))?;
        let worker = make(Identity {
            worker_id,
            port: address.port(),
            device,
            supervisor: supervisor.clone(),
            traces,
        });
        let termination = termination(supervisor.is_some())?;
        let listen = match supervisor
            .as_ref()
            .and_then(|supervisor| supervisor.keys.as_ref())
        {
            Some(keys) => args.listen.for_parent(keys),
            None => args.listen.clone(),
        };
        let heart = worker.clone();
        let body = move || health::heartbeat(&*heart);
        // One of several models has a parent who speaks for all.
        let is_model = supervisor
            .as_ref()
            .is_some_and(|supervisor| supervisor.keys.is_some());
        let _heartbeat = args
            .orchestrator()
            .filter(|_| !is_model)
            .map(|url| Heartbeat::start(&url, heartbeat::INTERVAL, body))
            .transpose()?;
        // For people and scripts alike: with port 0 this is where the port is told.
        // Where nobody reads it, the server serves all the same.
        let _ = print_line(&format!("{LISTENING}http://{address}"));
        let result = run(worker, listener, &listen, load, termination).await;
        if let (Err(error), true) = (&result, is_model) {
            tell_parent(error);
        }
        result
    });
    sending.stop();
    // A model that is still loading is not waited for.
    runtime.shutdown_background();
    result
}

/// Tells the parent of one of several models why this one cannot be served.
fn tell_parent(error: &Error) {
    let failed = Failed {
        message: error.to_string(),
        memory: error.is_out_of_memory(),
    };
    if let Ok(failed) = serde_json::to_string(&failed) {
        // It learns of the end anyway.
        let _ = print_line(&format!("{FAILED}{failed}"));
    }
}

/// Serves until `termination` resolves, loading fails, or the device is lost.
///
/// `load` runs on a thread of its own; the port answers from the start, `/health` with 503 until the model is there.
///
/// # Errors
/// What loading failed with; [`Error::DeviceLost`] after a lost device.
pub async fn run<W: Worker>(
    worker: Arc<W>,
    listener: TcpListener,
    listen: &ListenOptions,
    load: impl FnOnce(&W) -> Result<W::Loaded> + Send + 'static,
    termination: impl Future<Output = ()> + Send,
) -> Result<()> {
    let address = listener.local_addr().ok();
    let router = router(worker.clone(), listen)?;
    let (stop, stopped) = oneshot::channel::<Ending>();
    let stopped = async {
        let ending = stopped.await.unwrap_or_else(|_| Ending {
            // A life that went wrong.
            since: Instant::now(),
            linger: Duration::ZERO,
            grace: Duration::ZERO,
        });
        Ending {
            grace: ending.grace + LAST_FRAMES,
            ..ending
        }
    };
    let server = serve(listener, router, stopped, listen.connections());
    let life = async {
        let result = tokio::select! {
            () = termination => Ok(()),
            error = live(&worker, load, address) => Err(error),
        };
        let grace = listen.grace();
        let mut linger = Duration::ZERO;
        if result.is_ok() {
            // After a lost device a supervisor goes on.
            linger = listen.linger();
            systemd::stopping();
            tracing::info!("stopping: running requests have {} s", grace.as_secs());
        }
        let since = Instant::now();
        let loaded = worker.frame().stop();
        worker.stopping();
        if let Some(loaded) = loaded {
            // Running answers finish or fail visibly before the server lets go of their connections. Meanwhile the port
            // answers on: a router that has not seen yet that this server stops is told so by 503, and goes elsewhere.
            let _ = tokio::task::spawn_blocking(move || loaded.stop(grace)).await;
        }
        // Nobody hears it where the server has ended by itself.
        let _ = stop.send(Ending {
            since,
            linger,
            grace: grace.saturating_sub(since.elapsed()),
        });
        result
    };
    tokio::pin!(server, life);
    tokio::select! {
        // It ends when it is told to, which is a part of this life.
        () = &mut server => life.await,
        lived = &mut life => {
            server.await;
            lived
        }
    }
}

/// Loads, then watches the device; resolves when there is nothing more to serve.
async fn live<W: Worker>(
    worker: &Arc<W>,
    load: impl FnOnce(&W) -> Result<W::Loaded> + Send + 'static,
    address: Option<std::net::SocketAddr>,
) -> Error {
    let (done, loaded) = oneshot::channel();
    let loading = worker.clone();
    let thread = std::thread::Builder::new().name("load".to_string());
    let spawned = thread.spawn(move || {
        let result = load(&loading).and_then(|loaded| loaded.warm_up().map(|()| loaded));
        // Nobody waits for it only when the server has ended.
        let _ = done.send(result);
    });
    if let Err(error) = spawned {
        return Error::Runtime(format!("cannot start a thread: {error}"));
    }
    let frame = worker.frame();
    match systemd::while_loading(&frame.progress, loaded).await {
        Ok(Ok(loaded)) => frame.serve(loaded),
        Ok(Err(error)) => return error,
        Err(_) => return Error::Runtime("loading the model went wrong".to_string()),
    }
    let device = &frame.identity.device;
    let address = address.map_or(String::new(), |address| format!(": http://{address}"));
    tracing::info!(
        "ready: {} on {} ({}){address}",
        worker.model(),
        device.name,
        device.description
    );
    systemd::ready(&format!("serving {}", worker.model()));
    loop {
        tokio::time::sleep(LOST_POLL).await;
        if let Err(Unready::Lost(reason)) = frame.ready() {
            tracing::error!("the device is lost: {reason}");
            let others_wait = frame.loaded().is_ok_and(|loaded| loaded.ends_at_once());
            let linger = match frame.identity.supervisor.is_some() || others_wait {
                true => LOST_LINGER_SHORT,
                false => LOST_LINGER,
            };
            tokio::time::sleep(linger).await;
            return Error::DeviceLost(reason);
        }
    }
}
