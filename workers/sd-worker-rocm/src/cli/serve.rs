//! `sd-worker-rocm serve`.

use super::model::ModelArgs;
use super::wording::LibraryArgs;
use super::Cli;
use crate::faces::FaceFolders;
use crate::image_io::DecodeLimits;
use crate::jobs::{Generate, QueueOptions};
use crate::preprocess::NetworkFolders;
use crate::server::{App, ControlFolders, ImageWorker, Limits, LoraFolders, ServerOptions};
use crate::upscale::UpscalerFolders;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;
use worker::device::Selected;
use worker::fault::DeviceFault;
use worker::serve::fleet::{self, FleetArgs, FleetSetup};
use worker::serve::Worker;
use worker::{Error, Result};

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    fleet: FleetArgs,

    #[command(flatten)]
    library: LibraryArgs,

    /// Name of the model in answers; the file's or repository's own if absent.
    #[arg(long, value_name = "NAME")]
    model_ref: Option<String>,

    /// A further name that requests of web UIs may use for the model; may be given several times.
    #[arg(long = "alias", value_delimiter = ',', value_name = "NAME")]
    aliases: Vec<String>,

    #[command(flatten)]
    server: worker::serve::ServerArgs,

    /// Requests that may wait; one more is answered 429.
    #[arg(long, default_value_t = 16, value_name = "N")]
    queue: usize,

    /// Seconds that finished jobs and their pictures are kept.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    keep: u64,

    /// Finished jobs that are kept at most.
    #[arg(long, default_value_t = 64, value_name = "N")]
    keep_count: usize,

    /// Folder in which jobs of /v1/jobs are written before they are taken, so that they go on after a restart; finished
    /// ones are there as long as they are kept.
    #[arg(long, value_name = "DIR")]
    queue_dir: Option<PathBuf>,

    /// Folder into which pictures are written that clients of web UIs ask to save (`save_images`); without one they are
    /// only sent.
    #[arg(long, value_name = "DIR")]
    save_dir: Option<PathBuf>,

    /// A preview with every N-th step, for clients that do not say; 0 none. Each waits for the GPU.
    #[arg(long, default_value_t = 0, value_name = "N")]
    preview_every: usize,

    /// Folder with ControlNets that clients may name (files, and folders as diffusers writes them); may be given
    /// several times.
    #[arg(long, value_delimiter = ':', value_name = "DIR")]
    controlnet_dir: Vec<PathBuf>,

    /// Folder with networks of preprocessors (safetensors, and folders as transformers writes them); may be given several
    /// times. Clients name the preprocessors.
    #[arg(long, value_delimiter = ':', value_name = "DIR")]
    preprocessor_dir: Vec<PathBuf>,

    /// Folder with upscalers (safetensors) that clients may name; may be given several times.
    #[arg(long, value_delimiter = ':', value_name = "DIR")]
    upscaler_dir: Vec<PathBuf>,

    /// Folder with networks for faces (safetensors): those that restore (GFPGAN, CodeFormer), which clients may name, one
    /// that finds them (RetinaFace), and ParseNet if at hand; may be given several times.
    #[arg(long, value_delimiter = ':', value_name = "DIR")]
    face_dir: Vec<PathBuf>,

    /// Longest side in pixels.
    #[arg(long, default_value_t = 2048, value_name = "N")]
    max_side: usize,

    /// Most pixels of a picture.
    #[arg(long, default_value_t = 2048 * 2048, value_name = "N")]
    max_pixels: usize,

    /// Most steps.
    #[arg(long, default_value_t = 150, value_name = "N")]
    max_steps: usize,

    /// Most pictures of a request.
    #[arg(long, default_value_t = 8, value_name = "N")]
    max_batch: usize,

    /// Most pixels of a picture that is sent here.
    #[arg(long, default_value_t = 32 << 20, value_name = "N")]
    max_upload_pixels: u64,
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<()> {
        let args = self.server.clone();
        let device = self.model.list()?.representative();
        if self.fleet.is_wanted(self.model.models().len()) {
            return self.serve_several();
        }
        worker::serve::supervised(&args, device, || self.serve())
    }

    /// Looks at what can be wrong without a model and without a device.
    pub(super) fn check(&self) -> Result<()> {
        self.model.list().map(drop)
    }

    /// Serves several models, each in a process of its own.
    fn serve_several(self) -> Result<()> {
        if self.model_ref.is_some() || !self.aliases.is_empty() {
            let reason =
                "--model-ref and --alias name one model; --models-config gives names to several";
            return Err(Error::Usage(reason.to_string()));
        }
        let options = self.options()?;
        let setup = FleetSetup {
            named: self.model.models().to_vec(),
            hub: self.model.hub(),
            args: self.fleet,
        };
        fleet::serve::<Cli, ImageWorker>(&self.server, setup, |identity| {
            ImageWorker::new(identity, options)
        })
    }

    /// Serves in this process.
    fn serve(self) -> Result<()> {
        let devices = self.model.list()?.open()?;
        let options = self.options()?;
        let args = self.server.clone();
        worker::serve::start(
            &args,
            devices[..].into(),
            |identity| ImageWorker::new(identity, options),
            move |worker: &ImageWorker| self.load(worker, devices),
        )
    }

    fn options(&self) -> Result<ServerOptions> {
        Ok(ServerOptions {
            library: self.library.library()?,
            model: self
                .model_ref
                .clone()
                .unwrap_or_else(|| self.model.asked_name()),
            aliases: self.aliases.clone(),
            limits: Limits {
                max_side: self.max_side,
                max_pixels: self.max_pixels,
                max_steps: self.max_steps,
                max_batch: self.max_batch,
                decode: DecodeLimits {
                    max_bytes: self.server.listen.max_body_bytes,
                    max_pixels: self.max_upload_pixels,
                    ..DecodeLimits::default()
                },
                ..Limits::default()
            },
            loras: LoraFolders::new(self.model.lora_dirs().to_vec()),
            controls: ControlFolders::new(self.controlnet_dir.clone()),
            upscalers: UpscalerFolders::new(self.upscaler_dir.clone()),
            preprocessors: NetworkFolders::new(self.preprocessor_dir.clone()),
            faces: FaceFolders::new(self.face_dir.clone()),
            embeddings: self.model.embeddings().to_vec(),
            vae: self.model.vae().map(Path::to_path_buf),
            save_dir: self.save_dir()?,
            preview_every: self.preview_every,
        })
    }

    /// The folder of saved pictures, made where it is missing.
    fn save_dir(&self) -> Result<Option<PathBuf>> {
        if let Some(folder) = &self.save_dir {
            std::fs::create_dir_all(folder)
                .map_err(|e| Error::Usage(format!("--save-dir {}: {e}", folder.display())))?;
        }
        Ok(self.save_dir.clone())
    }

    /// Loads the model and starts the queue before it.
    fn load(&self, worker: &ImageWorker, devices: Vec<Selected>) -> Result<App> {
        let progress = &worker.frame().progress;
        progress.begin("finding the model");
        let mut loaded = self.model.load_on(devices, progress)?;
        if let Some(name) = &self.model_ref {
            loaded.rename(name);
        }
        if loaded.devices.iter().any(|device| device.device.is_rocm()) {
            progress.begin("making a first picture");
            for (number, error) in loaded.warm_up() {
                // Smaller pictures may find room where this one did not.
                let names = loaded.names(number);
                match loaded.models[number].pipeline.diagnose(&error) {
                    DeviceFault::Lost(reason) => {
                        return Err(Error::DeviceLost(format!("{names}: {reason}")))
                    }
                    _ => tracing::warn!("the first picture on {names} failed: {error}"),
                }
            }
        }
        let options = QueueOptions {
            capacity: self.queue,
            keep: Duration::from_secs(self.keep),
            keep_count: self.keep_count,
            ..QueueOptions::default()
        };
        let devices = loaded.served();
        let app = worker.app_on(loaded.into_queue(options)?, devices);
        if let Some(folder) = &self.queue_dir {
            progress.begin("reading saved jobs");
            app.keep_jobs(folder)?;
        }
        Ok(app)
    }
}
