//! `llm-worker-rocm serve`.

mod model;

use super::kv_events::KvEventArgs;
use super::source::{ServedArgs, SourceArgs};
use super::Cli;
use crate::engine::EngineOptions;
use crate::kv_events::Publisher;
use crate::server::{App, AppOptions, FileOptions, FileStore, FollowerApp, Following, MetricNames};
use crate::split::Placement;
use clap::Args;
pub(super) use model::ModelArgs;
use std::path::PathBuf;
use std::sync::{mpsc, Arc};
use std::time::Duration;
use worker::serve::fleet::{self, FleetArgs, FleetSetup};
use worker::signal::stop_this_process;
use worker::{Error, Result};

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    served: ServedArgs,

    #[command(flatten)]
    fleet: FleetArgs,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    server: worker::serve::ServerArgs,

    /// Most requests that wait; more are refused with 429.
    #[arg(long, default_value_t = EngineOptions::default().max_waiting, value_name = "N")]
    queue: usize,

    /// A folder for what POST /slots/ID?action=save saves of the cache; without, nothing is saved.
    #[arg(long, value_name = "FOLDER")]
    slot_save_path: Option<PathBuf>,

    /// Do not tell in GET /slots what runs.
    #[arg(long)]
    no_slots: bool,

    /// No chat page.
    #[arg(long)]
    no_page: bool,

    #[command(flatten)]
    kv_events: KvEventArgs,

    /// By which names /metrics tells its figures.
    #[arg(long, value_enum, default_value_t, value_name = "NAMES")]
    metrics_names: MetricNames,

    /// A folder for the files and batches of clients, which outlive the server there; without, they end with it.
    #[arg(long, value_name = "FOLDER")]
    files: Option<PathBuf>,

    /// Longest file of a client in bytes.
    #[arg(long, default_value_t = FileOptions::default().max_file_bytes, value_name = "N")]
    max_file_bytes: u64,

    /// Most bytes of all files of clients; results of batches are written nevertheless.
    #[arg(long, default_value_t = FileOptions::default().max_bytes, value_name = "N")]
    max_files_bytes: u64,

    /// Seconds without a request after which weights and cache are given back; the next request loads the model again,
    /// and waits for that. 0 is never.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    sleep_after: u64,

    /// Seconds that a request may take, its time in the queue included; 0 is no limit.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

/// How requests come to the models of [`ModelArgs`].
#[derive(Debug, Clone)]
pub(super) struct Service {
    /// Most requests that are computed at once.
    pub parallel: usize,
    /// Most requests that wait.
    pub queue: usize,
    /// Where slots are saved, if they may be.
    pub slot_save_path: Option<PathBuf>,
    /// How long nothing is asked until weights and cache are given back.
    pub sleep_after: Option<Duration>,
    /// Who is told what the prefix cache holds.
    pub kv_events: Option<Publisher>,
    /// The devices that share a model of text.
    pub placement: Arc<Placement>,
}

/// So many seconds, unless that is 0.
pub(super) fn seconds(count: u64) -> Option<Duration> {
    Some(count)
        .filter(|&count| count > 0)
        .map(Duration::from_secs)
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<()> {
        self.check()?;
        let mut args = self.server.clone();
        let device = self.model.placement.representative()?;
        let spans_hosts = self.model.nodes.is_wanted();
        if self.fleet.is_wanted(self.served.models.len()) {
            if spans_hosts {
                let reason = "--nnodes: one model runs over several hosts, not several models";
                return Err(Error::Usage(reason.to_string()));
            }
            return self.serve_several();
        }
        if spans_hosts {
            args = args.supervised_only_if_asked();
        }
        let source = self.served.one()?;
        worker::serve::supervised(&args, device, || self.serve(source))
    }

    /// Looks at what can be wrong without a model and without a device.
    pub(super) fn check(&self) -> Result<()> {
        self.model.sampling()?;
        self.model.placement.list().map(drop)
    }

    /// Serves several models, each in a process of its own.
    fn serve_several(self) -> Result<()> {
        if self.model.model_ref.is_some() || !self.model.aliases.is_empty() {
            let reason =
                "--model-ref and --alias name one model; --models-config gives names to several";
            return Err(Error::Usage(reason.to_string()));
        }
        let options = self.app_options("several models".to_string())?;
        let setup = FleetSetup {
            args: self.fleet,
            named: self.served.models,
            hub: self.served.hub.options(),
        };
        fleet::serve::<Cli, App>(&self.server, setup, |identity| App::new(identity, options))
    }

    fn app_options(&self, model: String) -> Result<AppOptions> {
        Ok(AppOptions {
            slots: !self.no_slots,
            page: !self.no_page,
            metric_names: self.metrics_names,
            ..self.model.app_options(model, seconds(self.timeout))?
        })
    }

    /// Serves in this process.
    fn serve(self, source: SourceArgs) -> Result<()> {
        let placement = Arc::new(self.model.open_devices()?);
        if self.model.nodes.follows()? {
            return self.follow(source, placement);
        }
        let selected = placement.as_one();
        let options = self.app_options(self.model.name(&source))?;
        let args = self.server.clone();
        let service = Service {
            parallel: self
                .model
                .parallel()
                .unwrap_or(EngineOptions::default().max_sequences),
            queue: self.queue,
            slot_save_path: self.slot_save_path,
            sleep_after: seconds(self.sleep_after),
            kv_events: self.kv_events.publisher()?,
            placement,
        };
        let files = FileStore::new(FileOptions {
            folder: self.files,
            max_file_bytes: self.max_file_bytes,
            max_bytes: self.max_files_bytes,
        })?;
        let model = self.model;
        worker::serve::start(
            &args,
            (&selected).into(),
            |identity| {
                let app = App::new(identity, options);
                app.keep_files(files);
                app
            },
            move |app: &App| model.load("serve", &source, &selected, &app.frame.progress, &service),
        )
    }

    /// Has a part of the model for the server on node 0, and tells on this host's port how that is.
    fn follow(self, source: SourceArgs, placement: Arc<Placement>) -> Result<()> {
        let name = self.model.name(&source);
        let model = self.model;
        worker::serve::start(
            &self.server,
            (&placement.as_one()).into(),
            |identity| FollowerApp::new(identity, name),
            move |app: &FollowerApp| {
                let following = Following::default();
                let (ready, loaded) = mpsc::channel();
                app.frame.progress.begin("waiting for the other nodes");
                let state = following.clone();
                let thread = std::thread::Builder::new().name("follower".to_string());
                let follower = thread.spawn(move || {
                    let tell = || {
                        // Nobody waits for it when it was loaded before.
                        let _ = ready.send(());
                    };
                    let followed = model.follow("serve", &source, &placement.selected, tell);
                    match &followed {
                        // As if told to stop: node 0 has done its work.
                        Ok(()) => stop_this_process(),
                        Err(error) => state.lose(&error.to_string()),
                    }
                    followed
                });
                let failed = |reason: String| Error::Runtime(format!("a thread: {reason}"));
                let follower = follower.map_err(|e| failed(e.to_string()))?;
                match loaded.recv() {
                    Ok(()) => Ok(following),
                    Err(_) => match follower.join() {
                        Ok(followed) => followed.map(|()| following),
                        Err(_) => Err(failed("it panicked".to_string())),
                    },
                }
            },
        )
    }
}
