//! From an open port to a graceful end.

use super::app::App;
use super::backend::Loaded;
use super::router;
use crate::engine::api::{Event, Request, SamplingOptions};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use worker::http::listen::serve;
use worker::http::ListenOptions;
use worker::{Error, Result};

/// How often the engine is asked whether its device is still there.
const LOST_POLL: Duration = Duration::from_secs(1);
/// How long `/health` tells that the device is lost before the process ends.
const LOST_LINGER: Duration = Duration::from_secs(10);
/// Answers have this long to reach their clients once the engine has ended them.
const LAST_FRAMES: Duration = Duration::from_secs(5);

/// Serves until `termination` resolves, loading fails, or the device is lost.
///
/// `load` runs on a thread of its own; the port answers from the start, `/health` with 503 until the model is there.
///
/// # Errors
/// What loading failed with; [`Error::DeviceLost`] after a lost device; [`Error::Runtime`] if the listener fails.
pub async fn run(
    app: Arc<App>,
    listener: TcpListener,
    listen: &ListenOptions,
    load: impl FnOnce(&App) -> Result<Loaded> + Send + 'static,
    termination: impl Future<Output = ()> + Send,
) -> Result<()> {
    let router = router(app.clone(), listen)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let server = serve(
        listener,
        router,
        async {
            // Dropped or sent, it means the same.
            let _ = stopped.await;
        },
        listen.grace() + LAST_FRAMES,
    );
    let life = async {
        let result = tokio::select! {
            () = termination => Ok(()),
            error = life(&app, load) => Err(error),
        };
        let loaded = app.stop();
        drop(stop);
        let grace = listen.grace();
        if let Some(text) = loaded.text {
            // Running answers finish or fail visibly before the server lets go of their connections.
            let _ = tokio::task::spawn_blocking(move || text.backend.stop(grace)).await;
        }
        result
    };
    tokio::pin!(server, life);
    tokio::select! {
        // Before the end of its life only if the listener broke.
        served = &mut server => served.and(life.await),
        lived = &mut life => lived.and(server.await),
    }
}

/// Loads, then watches the device; resolves when there is nothing more to serve.
async fn life(app: &Arc<App>, load: impl FnOnce(&App) -> Result<Loaded> + Send + 'static) -> Error {
    let (done, loaded) = oneshot::channel();
    let loading = app.clone();
    let thread = std::thread::Builder::new().name("load".to_string());
    let spawned = thread.spawn(move || {
        let result = load(&loading).and_then(|loaded| warm_up(&loaded).map(|()| loaded));
        // Nobody waits for it only when the server has ended.
        let _ = done.send(result);
    });
    if let Err(error) = spawned {
        return Error::Runtime(format!("cannot start a thread: {error}"));
    }
    match loaded.await {
        Ok(Ok(loaded)) => app.serve(loaded),
        Ok(Err(error)) => return error,
        Err(_) => return Error::Runtime("loading the model went wrong".to_string()),
    }
    tracing::info!(
        "ready: {} on {}",
        app.options.model,
        app.options.device.name
    );
    loop {
        tokio::time::sleep(LOST_POLL).await;
        if let Err(super::app::Unready::Lost(reason)) = app.ready() {
            tracing::error!("the device is lost: {reason}");
            tokio::time::sleep(LOST_LINGER).await;
            return Error::DeviceLost(reason);
        }
    }
}

/// One forward pass, so that the first request does not pay for what is made on first use, and a broken device shows now.
fn warm_up(loaded: &Loaded) -> Result<()> {
    let Some(text) = &loaded.text else {
        return Ok(());
    };
    let failed =
        |reason: String| Error::Runtime(format!("the first forward pass failed: {reason}"));
    let mut request = Request::new(vec![0], SamplingOptions::greedy());
    request.max_tokens = Some(1);
    let mut ticket = text
        .backend
        .submit(request)
        .map_err(|e| failed(e.to_string()))?;
    loop {
        match ticket.events.blocking_recv() {
            Some(Event::Finished(_)) => return Ok(()),
            Some(Event::Failed(failure)) => return Err(failed(failure.to_string())),
            Some(_) => {}
            None => return Err(failed("the engine ended".to_string())),
        }
    }
}
