//! What the workers' HTTP servers share.
//!
//! | Module        | Gives                                                                        |
//! |---------------|------------------------------------------------------------------------------|
//! | [`auth`]      | API keys as a middleware                                                     |
//! | [`error`]     | one error type in OpenAI's shape, for answers and for streams                |
//! | [`callers`]   | which requests a server without a key answers                                |
//! | `body`        | how fast bodies must come, and memory after large ones                       |
//! | [`json`]      | a request body that is JSON, or a 400 that says where it is not              |
//! | [`sse`]       | server-sent events that never end without saying so                          |
//! | [`listen`]    | address, limits, rules for browsers, when to stop                            |
//! | [`connections`] | serving: how many connections there may be, and how long each may take     |
//! | [`heartbeat`] | the worker's sign of life to its orchestrator                                |
//! | [`blocking`]  | work that takes long, off the threads that serve                             |
//! | [`base_url`]  | the address under which a client reached the server                          |
//! | [`page`]      | files of a page for people                                                   |

pub mod auth;
pub mod base_url;
pub mod blocking;
mod body;
pub mod callers;
pub mod connections;
pub mod error;
pub mod heartbeat;
pub mod json;
pub mod listen;
pub mod page;
pub mod sse;

pub use auth::{ApiKeys, Caller};
pub use base_url::base_url;
pub use blocking::{blocking, try_blocking};
pub use error::ApiError;
pub use heartbeat::Heartbeat;
pub use json::{Both, JsonBody};
pub use listen::ListenOptions;
