//! The frame of a worker's server: everything that does not depend on what the worker does.
//!
//! | Module       | Gives                                                                                     |
//! |--------------|-------------------------------------------------------------------------------------------|
//! | [`frame`]    | who the worker is, its phase (loading, ready, stopping), and the model once it is there    |
//! | [`progress`] | how far loading is                                                                        |
//! | [`routes`]   | one table of routes                                                                       |
//! | [`mod@router`] | all routes, with keys, limits, cross-origin rules, the access log                       |
//! | [`health`]   | `/health` `/ready` `/info`, and the sign of life for orchestrators                        |
//! | [`inside`]   | the routes for the worker itself, without a socket                                        |
//! | [`metrics`]  | `/metrics`                                                                                |
//! | [`openapi`]  | `/openapi.json`                                                                           |
//! | [`life`]     | from an open port to a graceful end, or exit code 3 when the device is lost               |
//! | `systemd`    | what the service manager is told                                                          |
//! | `supervise`  | a parent process that holds the port and starts the server anew after a crash             |
//! | [`fleet`]    | several models behind one port, each in a process of its own                              |
//!
//! A worker brings its arguments, its routes, a function that loads, and [`Served`]: what is loaded, its state, its
//! figures, its end.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use worker::serve::{self, DeviceInfo, Figure, Frame, Identity, Route, Routes, ServerArgs, Served, Status, Worker};
//! #[derive(Clone)]
//! struct Echo;
//!
//! impl Served for Echo {
//!     fn status(&self) -> Status {
//!         Status::default()
//!     }
//!     fn figures(&self) -> Vec<Figure> {
//!         Vec::new()
//!     }
//!     fn stop(&self, _grace: std::time::Duration) {}
//! }
//!
//! struct EchoWorker(Frame<Echo>);
//!
//! impl Worker for EchoWorker {
//!     type Loaded = Echo;
//!     const NAME: &'static str = "echo-worker";
//!     const VERSION: &'static str = "1.0.0";
//!     fn frame(&self) -> &Frame<Echo> {
//!         &self.0
//!     }
//!     fn model(&self) -> String {
//!         "echo".to_string()
//!     }
//!     fn routes() -> Routes<Self> {
//!         let echo = |body: String| async move { body };
//!         Routes { protected: vec![Route::post("/echo", "Says it again", echo)], ..Routes::default() }
//!     }
//! }
//!
//! # fn run(args: ServerArgs, request: worker::device::DeviceRequest) -> worker::Result<()> {
//! serve::supervised(&args, request, || {
//!     let device = DeviceInfo::from(&request.open()?);
//!     let make = |identity: Identity| Arc::new(EchoWorker(Frame::new(identity, "echo")));
//!     serve::start(&args, device, make, |_worker| Ok(Echo))
//! })
//! # }
//! ```

pub mod fleet;
pub mod frame;
pub mod health;
pub mod inside;
pub mod life;
pub mod metrics;
pub mod openapi;
mod phase;
pub mod progress;
pub mod router;
pub mod routes;
mod supervise;
mod systemd;

pub use frame::{DeviceInfo, Frame, Identity, Model, Unready};
pub use inside::{Inside, InsideAnswer};
pub use life::{run, start, supervised};
pub use metrics::{Figure, Labels};
pub use progress::Progress;
pub use router::{all_routes, router};
pub use routes::{Route, Routes};
pub use supervise::options::SuperviseArgs;
pub use supervise::supervisor::Supervisor;

use crate::http::ListenOptions;
use crate::observe::TraceArgs;
use crate::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// What standard output tells once the port answers, before the address.
const LISTENING: &str = "listening on ";
/// What standard output tells the parent of one of several models when the model cannot be served, before [`Failed`].
const FAILED: &str = "failed: ";

/// Why a model cannot be served.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Failed {
    message: String,
    /// Whether the device's memory did not suffice.
    memory: bool,
}

/// A program that serves a model.
///
/// Handlers get it as `State<Arc<Self>>`, and what is loaded as [`Model`].
pub trait Worker: Send + Sync + Sized + 'static {
    /// What there is once loading has succeeded.
    type Loaded: Served;

    /// The program.
    const NAME: &'static str;
    /// Its version.
    const VERSION: &'static str;
    /// Whether `/metrics` is open to those who have no key.
    const OPEN_METRICS: bool = false;

    /// Its frame.
    fn frame(&self) -> &Frame<Self::Loaded>;

    /// What the model is called in answers, also while it loads.
    fn model(&self) -> String;

    /// Its routes, besides those of the frame.
    fn routes() -> Routes<Self>;

    /// Called once when nothing new is taken any more, before [`Served::stop`].
    fn stopping(&self) {}
}

/// What a worker has loaded. Clones are handles to the same.
pub trait Served: Clone + Send + Sync + 'static {
    /// Makes what is made on first use, so that the first request does not pay for it and a broken device shows now.
    /// Called once, by the thread that loaded.
    ///
    /// # Errors
    /// What failed; the worker then ends.
    fn warm_up(&self) -> Result<()> {
        Ok(())
    }

    /// The moment's state.
    fn status(&self) -> Status;

    /// Its figures for `/metrics`; names must be the same each time.
    fn figures(&self) -> Vec<Figure>;

    /// The same by the names that others gave them, for [`Frame::with_other_names`]; names must be the same each time.
    fn other_figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    /// Further fields of `/info`.
    fn info(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Whether the process ends at once when its device is lost, as other hosts wait for that to start anew.
    fn ends_at_once(&self) -> bool {
        false
    }

    /// Takes nothing new, gives what runs `grace` to finish, and returns when all has ended. Blocks.
    fn stop(&self, grace: Duration);
}

/// The state of what is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether a request that came now would have to wait for others.
    pub busy: bool,
    /// Why the device is gone, if it is.
    pub lost: Option<String>,
    /// What works more slowly than it should, and why; nothing of it makes an answer wrong.
    pub degraded: Vec<String>,
}

/// The arguments of every worker's `serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Where and for whom to serve.
    #[command(flatten)]
    pub listen: ListenOptions,

    /// Name of this worker for its orchestrator; random if absent.
    #[arg(long, env = "WORKER_ID", value_name = "ID")]
    worker_id: Option<String>,

    /// Address of an orchestrator that gets a heartbeat every 30 seconds; also from CALLBACK_URL.
    #[arg(long, visible_aliases = ["hive-url", "callback-url"], env = "QUEEN_URL", value_name = "URL")]
    queen_url: Option<String>,

    /// What happens when the server crashes.
    #[command(flatten)]
    supervise: SuperviseArgs,

    /// Where traces go.
    #[command(flatten)]
    traces: TraceArgs,
}

impl ServerArgs {
    /// The worker's name.
    fn worker_id(&self) -> String {
        let given = self.worker_id.clone().filter(|id| !id.is_empty());
        given.unwrap_or_else(|| crate::ids::uuid().to_string())
    }

    /// The same without a supervising process, unless that was asked for: whoever started the other hosts of a model
    /// starts all anew.
    pub fn supervised_only_if_asked(mut self) -> Self {
        self.supervise = self.supervise.only_if_asked();
        self
    }

    /// Crashes after which a model's process is not started again at once, within which time, and whether core files are
    /// left.
    fn crash_limits(&self) -> (usize, Duration, bool) {
        let SuperviseArgs {
            max_restarts,
            core_files,
            ..
        } = &self.supervise;
        (*max_restarts, self.supervise.window(), *core_files)
    }

    /// Where heartbeats go.
    fn orchestrator(&self) -> Option<String> {
        let callback = || std::env::var("CALLBACK_URL").ok();
        let given = self.queen_url.clone().or_else(callback);
        given.filter(|url| !url.is_empty())
    }
}
