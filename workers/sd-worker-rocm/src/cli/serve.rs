//! `sd-worker-rocm serve`.

use super::model::ModelArgs;
use crate::image_io::DecodeLimits;
use crate::jobs::{JobQueue, QueueOptions};
use crate::server::{App, ControlFolders, Limits, LoraFolders, ServerOptions};
use axum::http::Method;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use worker::http::heartbeat::{Heartbeat, INTERVAL};
use worker::http::listen::{serve, termination};
use worker::http::{ApiKeys, ListenOptions};
use worker::{Error, Result};

/// Threads that talk HTTP; pictures are made in another.
const HTTP_THREADS: usize = 2;

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    listen: ListenOptions,

    /// The name that an orchestrator gave this worker.
    #[arg(long, env = "WORKER_ID", value_name = "ID")]
    worker_id: Option<String>,

    /// Where to send a sign of life every 30 seconds.
    #[arg(long, visible_aliases = ["queen-url", "hive-url"], env = "CALLBACK_URL", value_name = "URL")]
    callback_url: Option<String>,

    /// Requests that may wait; one more is answered 429.
    #[arg(long, env = "SD_QUEUE", default_value_t = 16, value_name = "N")]
    queue: usize,

    /// Seconds that finished jobs and their pictures are kept.
    #[arg(long, env = "SD_KEEP", default_value_t = 600, value_name = "SECONDS")]
    keep: u64,

    /// Finished jobs that are kept at most.
    #[arg(long, env = "SD_KEEP_COUNT", default_value_t = 64, value_name = "N")]
    keep_count: usize,

    /// A preview with every N-th step, for clients that do not say; 0 none. Each waits for the GPU.
    #[arg(long, env = "SD_PREVIEW_EVERY", default_value_t = 0, value_name = "N")]
    preview_every: usize,

    /// Folder with ControlNets that clients may name (files, and folders as diffusers writes them); may be given several times.
    #[arg(
        long,
        env = "SD_CONTROLNET_DIR",
        value_delimiter = ':',
        value_name = "DIR"
    )]
    controlnet_dir: Vec<PathBuf>,

    /// Longest side in pixels.
    #[arg(long, env = "SD_MAX_SIDE", default_value_t = 2048, value_name = "N")]
    max_side: usize,

    /// Most pixels of a picture.
    #[arg(long, env = "SD_MAX_PIXELS", default_value_t = 2048 * 2048, value_name = "N")]
    max_pixels: usize,

    /// Most steps.
    #[arg(long, env = "SD_MAX_STEPS", default_value_t = 150, value_name = "N")]
    max_steps: usize,

    /// Most pictures of a request.
    #[arg(long, env = "SD_MAX_BATCH", default_value_t = 8, value_name = "N")]
    max_batch: usize,

    /// Most pixels of a picture that is sent here.
    #[arg(long, env = "SD_MAX_UPLOAD_PIXELS", default_value_t = 32 << 20, value_name = "N")]
    max_upload_pixels: u64,
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(HTTP_THREADS)
            .enable_all()
            .build()
            .map_err(|e| Error::Runtime(format!("cannot start threads: {e}")))?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> Result<()> {
        // The port first: a typing mistake shows before minutes of loading.
        let listener = self.listen.bind().await?;
        let address = listener
            .local_addr()
            .map_err(|e| Error::Runtime(format!("the port: {e}")))?;
        let loaded = self.model.load()?;
        let name = loaded.pipeline.info().name.clone();
        let selected = loaded.selected;
        let queue = JobQueue::start(
            Box::new(loaded.pipeline),
            QueueOptions {
                capacity: self.queue,
                keep: Duration::from_secs(self.keep),
                keep_count: self.keep_count,
            },
        )?;
        let options = ServerOptions {
            limits: Limits {
                max_side: self.max_side,
                max_pixels: self.max_pixels,
                max_steps: self.max_steps,
                max_batch: self.max_batch,
                decode: DecodeLimits {
                    max_bytes: self.listen.max_body_bytes,
                    max_pixels: self.max_upload_pixels,
                    ..DecodeLimits::default()
                },
                ..Limits::default()
            },
            loras: LoraFolders::new(self.model.lora_dirs().to_vec()),
            controls: ControlFolders::new(self.controlnet_dir.clone()),
            keys: ApiKeys::new(self.listen.api_keys.clone()),
            device: selected.description.clone(),
            device_fallback: selected.fallback.clone(),
            preview_every: self.preview_every,
            worker_id: self.worker_id.clone(),
            port: address.port(),
            origins: self.listen.cors_origins.clone(),
        };
        let app = App::new(queue.clone(), options);
        let router = self
            .listen
            .limit(app.router(), [Method::GET, Method::POST, Method::DELETE])?;
        let _heart = match &self.callback_url {
            Some(url) => {
                let app = app.clone();
                Some(Heartbeat::start(url, INTERVAL, move || app.heartbeat())?)
            }
            None => None,
        };
        let terminated = termination()?;
        let grace = self.listen.grace();
        let stopping = queue.clone();
        let stop = async move {
            terminated.await;
            eprintln!("stopping: running requests have {} s", grace.as_secs());
            stopping.close();
            // What still runs near the end of the grace is cancelled, so that its client hears why.
            tokio::spawn(async move {
                tokio::time::sleep(grace.mul_f64(0.9)).await;
                stopping.cancel_all();
            });
        };
        eprintln!("{name} on {}: http://{address}", selected.description);
        serve(listener, router, stop, grace).await?;
        queue.stop();
        Ok(())
    }
}
