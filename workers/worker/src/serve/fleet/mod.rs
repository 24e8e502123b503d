//! Several models in one server.
//!
//! Each model that is loaded is a process of its own, which is the server of one model as ever. A parent holds the port,
//! checks keys and limits, and passes each request on to the process of the model that it names, which it starts when it
//! is first asked for. So the crash of one model touches no other, what a model has taken comes back whole when it ends,
//! and models of all kinds stand side by side. The processes listen on loopback, each for keys that only the parent has.
//!
//! | Module       | Gives                                                                    |
//! |--------------|--------------------------------------------------------------------------|
//! | [`options`]  | the arguments                                                            |
//! | `table`      | the options of `serve` by their names                                    |
//! | `config`     | which models there are, and how each is served                           |
//! | `files`      | models in folders                                                        |
//! | `schedule`   | who is loaded, who waits, who makes room: rules only                     |
//! | `memory`     | how much there is                                                        |
//! | `child`      | the process of one model                                                 |
//! | `state`      | what is known of the models, and how lists show it                       |
//! | `handle`     | the models, moved on by those rules                                      |
//! | `lease`      | places of requests at models, and how they are waited for                |
//! | `models`     | which models there are, by which names                                   |
//! | `commands`   | what is done to a model by its name: loaded, unloaded, asked             |
//! | `life`       | from the start of a model's process to its end                           |
//! | `named`      | which model a request names                                              |
//! | `proxy`      | a request passed on, its answer passed back                              |
//! | `figures`    | the figures of all processes as one text                                 |
//! | [`server`]   | the server's routes                                                      |
//!
//! States, `POST /models/load` and `/models/unload` are those of llama.cpp's server
//! (<https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md#using-multiple-models>).

mod child;
mod commands;
mod config;
mod figures;
mod files;
mod handle;
mod lease;
mod life;
mod memory;
mod models;
mod named;
pub mod options;
mod proxy;
mod schedule;
pub mod server;
mod state;
mod table;

pub use files::ModelFiles;
pub use handle::Fleet;
pub use options::FleetArgs;
pub use server::FleetServer;
pub use state::ModelView;

use super::{start, DeviceInfo, Identity, Route, ServerArgs, Worker};
use crate::cli::{env, Program};
use crate::http::sse::{self, Encoding, Protocol};
use crate::http::ApiError;
use crate::hub::HubOptions;
use crate::{ids, Result};
use axum::response::{IntoResponse, Response};
use config::Sources;
use handle::Options;
use schedule::{Limits, Place};
use std::collections::BTreeSet;
use std::sync::Arc;
use table::OptionTable;

/// A worker of which several can stand behind one server.
pub trait FleetWorker: Worker {
    /// What its models look like on a disk.
    const MODEL_FILES: ModelFiles;
    /// Whether the first model answers requests that name none, where no default is given.
    const FIRST_IS_DEFAULT: bool = false;

    /// Routes of the server of several models in place of those of the same path and method.
    fn fleet_routes() -> Vec<Route<FleetServer<Self>>> {
        Vec::new()
    }

    /// Whether a route of the worker needs no model, and is answered without one.
    fn answers_alone(path: &str) -> bool {
        let _ = path;
        false
    }

    /// A model's name without what clients add to it; asked for where no model has the name as it is.
    fn plain_name(name: &str) -> &str {
        name
    }

    /// An error as clients of a route read it.
    fn refusal(path: &str, error: ApiError) -> Response {
        let _ = path;
        error.into_response()
    }

    /// How a route's streams tell a failure.
    fn protocol(path: &str) -> Protocol {
        let _ = path;
        Protocol {
            encoding: Encoding::Events,
            failure: |error| sse::data(&error.to_json()),
            done: Some("[DONE]"),
        }
    }
}

/// Where the models of a server come from.
pub struct FleetSetup {
    /// What the command line says of several models.
    pub args: FleetArgs,
    /// The models of `--model`.
    pub named: Vec<String>,
    /// Where the cache of Hugging Face is.
    pub hub: HubOptions,
}

/// Serves several models until a signal comes. `make` makes the worker that answers what needs no model.
///
/// # Errors
/// [`crate::Error::Usage`] for models or options that are wrong, and those of [`start`].
pub fn serve<P: Program, W: FleetWorker>(
    server: &ServerArgs,
    setup: FleetSetup,
    make: impl FnOnce(Identity) -> Arc<W>,
) -> Result<()> {
    let table = OptionTable::of::<P>();
    let sources = Sources {
        args: setup.args,
        named: setup.named,
        files: W::MODEL_FILES,
        cache: setup.hub,
        matches: env::command::<P>().get_matches(),
    };
    let catalogue = sources.read::<P>(&table)?;
    let places: BTreeSet<Place> = catalogue.models.iter().map(|model| model.place).collect();
    let places: Vec<String> = places.iter().map(ToString::to_string).collect();
    let device = DeviceInfo {
        name: places.join(","),
        description: format!(
            "{} models, each in a process of its own",
            catalogue.models.len()
        ),
        fallback: None,
    };
    let args = sources.args.clone();
    let (most, window, core_files) = server.crash_limits();
    let limits = Limits {
        models: Some(args.models_max).filter(|&most| most > 0),
        memory: args.models_memory.map(|size| size.0),
        waiting: args.models_queue,
    };
    let (mut keys, grace) = (server.listen.keys()?.derived(), server.listen.grace());
    if keys.is_empty() {
        // The server asks for none; its models' processes do.
        keys.push((0, ids::Token::new().as_str().to_string()));
    }
    let hidden = table.variables_of_server().cloned().collect();
    start(
        server,
        device,
        |identity| FleetServer::new(identity, make),
        move |worker: &FleetServer<W>| {
            let options = Options {
                limits,
                wait: args.models_wait.positive(),
                autoload: !args.no_models_autoload,
                first_is_default: W::FIRST_IS_DEFAULT,
                hidden,
                keys: keys.into(),
                worker_id: worker.frame().identity.worker_id.clone(),
                grace,
                core_files,
                crashes: (most, window),
                reread: Box::new(move || sources.read::<P>(&table)),
            };
            Fleet::open(options, catalogue, worker.runtime.clone())
        },
    )
}
