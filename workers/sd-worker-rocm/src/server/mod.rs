//! The HTTP server, in the frame of [`worker::serve`].
//!
//! | Module       | Routes                                                                                  |
//! |--------------|-----------------------------------------------------------------------------------------|
//! | [`jobs`]     | `/v1/jobs`: submit (rbee's operations), list, watch, stream, cancel, pictures           |
//! | `choices`    | `/v1/choices`: the model's defaults, limits, and what requests may name                 |
//! | `recalled`   | `/v1/recall`: what a picture was made with, as fields of a job                          |
//! | [`pictures`] | `/v1/pictures/…`: single pictures for whoever has their address                         |
//! | [`controls`] | `/controlnet/…`: what the web UI's extension lists                                      |
//! | [`openai`]   | `/v1/images/generations` `edits` `variations`, `/v1/models`                             |
//! | [`sdapi`]    | `/sdapi/v1/…` as AUTOMATIC1111's web UI answers                                         |
//! | `comfy`      | ComfyUI's `/prompt`, `/queue`, `/history`, `/view`, `/ws` and what goes with them       |
//! | `swarm`      | `/API/…` as SwarmUI answers                                                             |
//! | `sdcpp`      | `/sdcpp/v1/…` as stable-diffusion.cpp's server answers                                  |
//! | `page`       | `/`: a page for people, and its files                                                   |
//! | `devices`    | the devices that the model is on                                                        |
//! | `keeper`     | jobs that go on after a restart; `saved_jobs` has their files                           |
//! | `fleet`      | what is different where several models are served                                       |
//!
//! [`request`] turns what they are asked into a [`ValidRequest`](crate::request::ValidRequest), [`answer`] waits and
//! encodes, `served` tells the frame of the model's state and figures.

pub mod answer;
mod choices;
mod comfy;
mod control_folders;
pub mod controls;
mod devices;
mod editing;
mod faces;
mod fleet;
mod highres;
mod ip_adapters;
pub mod jobs;
mod keeper;
pub mod loras;
pub mod openai;
mod openai_fields;
mod page;
pub mod pictures;
mod recalled;
pub mod request;
mod saved_jobs;
pub mod sdapi;
mod sdcpp;
mod served;
mod swarm;
mod videos;
mod wording;

pub use crate::request::Limits;
pub use control_folders::ControlFolders;
pub use devices::ServedDevice;
pub use loras::LoraFolders;

use crate::faces::FaceFolders;
use crate::jobs::JobQueue;
use crate::preprocess::NetworkFolders;
use crate::request::Library;
use crate::upscale::UpscalerFolders;
use comfy::state::Comfy;
use keeper::Keeper;
use sdapi::state::WebUi;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use swarm::Swarm;
use worker::serve::{Frame, Identity, Routes, Worker};

/// What the server is told at its start.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// What the model is called while it loads.
    pub model: String,
    /// Further names of it.
    pub aliases: Vec<String>,
    /// What is too much.
    pub limits: Limits,
    /// Styles and wildcards.
    pub library: Library,
    /// Where LoRAs are found.
    pub loras: LoraFolders,
    /// Where ControlNets are found.
    pub controls: ControlFolders,
    /// Where upscalers are found.
    pub upscalers: UpscalerFolders,
    /// Where networks of preprocessors are found.
    pub preprocessors: NetworkFolders,
    /// Where networks for faces are found.
    pub faces: FaceFolders,
    /// Textual inversions: files, and folders of files.
    pub embeddings: Vec<PathBuf>,
    /// The VAE in place of the model's own.
    pub vae: Option<PathBuf>,
    /// Where pictures are written that web UIs' clients want to be saved.
    pub save_dir: Option<PathBuf>,
    /// Previews for clients that do not say how often: with every n-th step, 0 none.
    pub preview_every: usize,
}

/// The worker, whose model may still be loading.
pub struct ImageWorker {
    frame: Frame<App>,
    options: Arc<ServerOptions>,
}

impl ImageWorker {
    /// A worker whose model is still to be loaded.
    pub fn new(identity: Identity, options: ServerOptions) -> Arc<Self> {
        Arc::new(Self {
            frame: Frame::new(identity, "sd_worker"),
            options: Arc::new(options),
        })
    }

    /// What handlers work with, over the queue of a loaded model.
    pub fn app(&self, queue: JobQueue) -> App {
        self.app_on(queue, Vec::new())
    }

    /// The same, with the devices that the model is on.
    pub fn app_on(&self, queue: JobQueue, devices: Vec<ServedDevice>) -> App {
        App(Arc::new(Shared {
            queue,
            devices,
            web_ui: WebUi::new(self.options.preview_every),
            comfy: Comfy::default(),
            swarm: Swarm::default(),
            keeper: OnceLock::new(),
            options: self.options.clone(),
            port: self.frame.identity.port,
        }))
    }
}

impl Worker for ImageWorker {
    type Loaded = App;

    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const OPEN_METRICS: bool = true;

    fn frame(&self) -> &Frame<App> {
        &self.frame
    }

    fn model(&self) -> String {
        let loaded = self.frame.loaded();
        loaded.map_or_else(
            |_| self.options.model.clone(),
            |app| app.queue().info().name.clone(),
        )
    }

    fn routes() -> Routes<Self> {
        let mut public = page::routes();
        public.extend(pictures::routes());
        public.extend(sdapi::public_routes());
        let mut protected = jobs::routes();
        protected.extend(choices::routes());
        protected.extend(recalled::routes());
        protected.extend(openai::routes());
        protected.extend(videos::routes());
        protected.extend(sdapi::routes());
        protected.extend(controls::routes());
        protected.extend(comfy::routes());
        protected.extend(sdcpp::routes());
        protected.extend(swarm::routes());
        Routes { public, protected }
    }
}

/// What handlers share, once the model is loaded.
#[derive(Clone)]
pub struct App(Arc<Shared>);

struct Shared {
    queue: JobQueue,
    devices: Vec<ServedDevice>,
    web_ui: WebUi,
    comfy: Comfy,
    swarm: Swarm,
    /// There if jobs are written to a disk.
    keeper: OnceLock<Keeper>,
    options: Arc<ServerOptions>,
    port: u16,
}

impl App {
    /// The queue.
    pub fn queue(&self) -> &JobQueue {
        &self.0.queue
    }

    /// The devices that the model is on.
    pub fn devices(&self) -> &[ServedDevice] {
        &self.0.devices
    }

    /// What keeps jobs on a disk, if anything does.
    fn keeper(&self) -> Option<&Keeper> {
        self.0.keeper.get()
    }

    /// What the web UI's routes remember.
    fn web_ui(&self) -> &WebUi {
        &self.0.web_ui
    }

    /// The sessions of SwarmUI's clients.
    fn swarm(&self) -> &Swarm {
        &self.0.swarm
    }

    /// What ComfyUI's routes remember.
    fn comfy(&self) -> &Comfy {
        &self.0.comfy
    }

    /// What the server was told at its start.
    pub fn options(&self) -> &ServerOptions {
        &self.0.options
    }

    /// The port that is listened on.
    pub fn port(&self) -> u16 {
        self.0.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker::serve::{self, openapi};

    #[test]
    fn every_route_is_described() {
        let document = openapi::document(&serve::all_routes::<ImageWorker>());
        for route in serve::all_routes::<ImageWorker>().iter() {
            let (path, method) = (route.path(), route.method().as_str());
            assert!(!route.summary().is_empty(), "{path}");
            // OpenAPI has no word for the rest of a path.
            let item = &document["paths"][path.replace("{*", "{")][method.to_lowercase()];
            assert_eq!(item["summary"], route.summary());
            assert_eq!(item["requestBody"].is_object(), route.has_body(), "{path}");
        }
        let job = &document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"];
        let reference = job["application/json"]["schema"]["$ref"].as_str().unwrap();
        let schema = document.pointer(&reference[1..]).unwrap();
        for field in ["operation", "prompt", "loras", "controls"] {
            assert!(schema["properties"][field].is_object(), "{field}");
        }
        let form = &document["paths"]["/v1/images/edits"]["post"]["requestBody"]["content"];
        assert!(form["multipart/form-data"].is_object(), "{form}");
    }
}
