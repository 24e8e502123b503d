//! `/sdapi/v1/…` as AUTOMATIC1111's web UI answers, so that tools made for it work.
//!
//! Options that would change the picture and are not implemented are refused by name; those that change nothing here
//! are ignored.
//!
//! | Module       | Gives                                                                                |
//! |--------------|--------------------------------------------------------------------------------------|
//! | `generation` | `txt2img` and `img2img`                                                              |
//! | `body`       | their bodies                                                                         |
//! | `passes`     | what these say of highres fix and of refiners                                        |
//! | `lenient`    | what asks for nothing: numbers as text, scripts that are switched off                |
//! | `scripts`    | scripts that this server stands for: Dynamic Prompts                                 |
//! | `settings`   | the web UI's settings: what is followed, what must be as it is, what changes nothing |
//! | `state`      | progress, interruption, settings that stay                                           |
//! | `extras`     | pictures made larger                                                                 |
//! | `lists`      | samplers, schedulers, models, LoRAs; what a picture was made with; what is not there |
//! | `refusal`    | errors as clients of the web UI read them                                            |

mod body;
pub(super) mod extras;
mod generation;
mod lenient;
pub(super) mod lists;
mod passes;
pub(super) mod refusal;
mod scripts;
mod settings;
pub(super) mod state;

use super::ImageWorker;
use body::Body;
use passes::Passes;
use worker::serve::Route;

/// The routes that ask for no key.
pub(super) fn public_routes() -> Vec<Route<ImageWorker>> {
    vec![Route::get(
        "/internal/ping",
        "Whether the server is there",
        lists::ping,
    )]
}

/// The routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    let mut routes = work();
    routes.extend(state_routes());
    routes.extend(list_routes());
    routes.extend(other_routes());
    routes
}

fn work() -> Vec<Route<ImageWorker>> {
    vec![
        Route::post("/sdapi/v1/txt2img", "Text to pictures", generation::txt2img)
            .takes::<Body>()
            .takes::<Passes>(),
        Route::post(
            "/sdapi/v1/img2img",
            "Pictures to pictures",
            generation::img2img,
        )
        .takes::<Body>(),
        Route::post(
            "/sdapi/v1/extra-single-image",
            "Makes a picture larger",
            extras::single,
        )
        .takes::<extras::Body>(),
        Route::post(
            "/sdapi/v1/extra-batch-images",
            "Makes pictures larger",
            extras::batch,
        )
        .takes::<extras::Body>(),
        Route::post(
            "/sdapi/v1/png-info",
            "What a picture was made with",
            lists::png_info,
        )
        .takes::<lists::PngInfoBody>(),
    ]
}

fn state_routes() -> Vec<Route<ImageWorker>> {
    vec![
        Route::get(
            "/sdapi/v1/progress",
            "How far the running job is",
            state::progress,
        ),
        Route::post(
            "/internal/progress",
            "How far one request is, by its force_task_id or its job's id",
            state::task_progress,
        )
        .takes::<state::TaskBody>(),
        Route::get(
            "/internal/pending-tasks",
            "The requests that wait",
            state::pending_tasks,
        ),
        Route::post(
            "/sdapi/v1/interrupt",
            "Cancels the running jobs",
            state::interrupt,
        ),
        Route::post(
            "/sdapi/v1/skip",
            "Cancels the running jobs",
            state::interrupt,
        ),
        Route::get(
            "/sdapi/v1/memory",
            "Memory of the host and of each device",
            state::memory,
        ),
        Route::get("/sdapi/v1/options", "How the worker is set", state::options),
        Route::post(
            "/sdapi/v1/options",
            "Changes settings; refuses by name what cannot be changed",
            state::set_options,
        ),
    ]
}

fn list_routes() -> Vec<Route<ImageWorker>> {
    let empty = "An empty list";
    vec![
        Route::get("/sdapi/v1/samplers", "The samplers", lists::samplers),
        Route::get(
            "/sdapi/v1/schedulers",
            "The noise schedules",
            lists::schedulers,
        ),
        Route::get(
            "/sdapi/v1/sd-models",
            "The model, in a list",
            lists::sd_models,
        ),
        Route::get(
            "/sdapi/v1/sd-vae",
            "The VAE beside the model's",
            lists::sd_vae,
        ),
        Route::get(
            "/sdapi/v1/sd-modules",
            "The VAE beside the model's",
            lists::sd_vae,
        ),
        Route::get(
            "/sdapi/v1/loras",
            "The LoRAs that prompts may name",
            lists::loras,
        ),
        Route::get(
            "/sdapi/v1/embeddings",
            "The textual inversions",
            lists::embeddings,
        ),
        Route::get(
            "/sdapi/v1/upscalers",
            "What makes pictures larger",
            extras::upscalers,
        ),
        Route::get(
            "/sdapi/v1/latent-upscale-modes",
            "What makes latents larger",
            extras::latent_modes,
        ),
        Route::get(
            "/sdapi/v1/realesrgan-models",
            "The networks that make pictures larger",
            extras::networks,
        ),
        Route::get("/sdapi/v1/face-restorers", empty, extras::face_restorers),
        Route::get(
            "/sdapi/v1/prompt-styles",
            "The styles that requests may name",
            lists::styles,
        ),
        Route::get("/sdapi/v1/hypernetworks", empty, lists::nothing),
        Route::get("/sdapi/v1/artists", empty, lists::nothing),
        Route::get("/sdapi/v1/artist-categories", empty, lists::nothing),
        Route::get(
            "/sdapi/v1/scripts",
            "The scripts that requests may name",
            lists::scripts,
        ),
        Route::get(
            "/sdapi/v1/script-info",
            "The scripts that requests may name",
            lists::script_info,
        ),
        Route::get(
            "/sdapi/v1/extensions",
            "The extensions that this server stands for",
            lists::extensions,
        ),
        Route::get(
            "/sdapi/v1/cmd-flags",
            "How the server was started",
            lists::cmd_flags,
        ),
        Route::get("/app_id", "The model", lists::app_id),
        Route::get(
            "/internal/sysinfo",
            "The program and its devices",
            lists::system,
        ),
    ]
}

fn other_routes() -> Vec<Route<ImageWorker>> {
    let anew = "Nothing: lists are read anew each time";
    let never = "Not implemented, and says so";
    vec![
        Route::post("/sdapi/v1/refresh-checkpoints", anew, lists::done),
        Route::post("/sdapi/v1/refresh-vae", anew, lists::done),
        Route::post("/sdapi/v1/refresh-loras", anew, lists::done),
        Route::post("/sdapi/v1/refresh-embeddings", anew, lists::done),
        Route::post(
            "/sdapi/v1/reload-checkpoint",
            "Nothing: the model is there",
            lists::reload,
        ),
        Route::post("/sdapi/v1/unload-checkpoint", never, lists::unload),
        Route::post("/sdapi/v1/interrogate", never, lists::interrogate),
        Route::post("/sdapi/v1/create/embedding", never, lists::training),
        Route::post("/sdapi/v1/create/hypernetwork", never, lists::training),
        Route::post("/sdapi/v1/train/embedding", never, lists::training),
        Route::post("/sdapi/v1/train/hypernetwork", never, lists::training),
        Route::post("/sdapi/v1/server-kill", never, lists::server_stop),
        Route::post("/sdapi/v1/server-restart", never, lists::server_stop),
        Route::post("/sdapi/v1/server-stop", never, lists::server_stop),
    ]
}
