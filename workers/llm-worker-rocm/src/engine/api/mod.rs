//! What the engine takes and gives. Everything above (command line, HTTP) speaks only this.
//!
//! | Module     | Gives                                                    |
//! |------------|----------------------------------------------------------|
//! | `adapters` | which adapters a request wants                           |
//! | `blocks`   | what becomes of blocks that are kept for equal beginnings |
//! | `request`  | requests, and what decides which tokens may come         |
//! | `sampling` | how tokens are chosen                                    |
//! | `event`    | tickets, events, tokens and figures of a request         |
//! | `failure`  | why a request gave no answer                             |
//! | `cache`    | how keys and values are stored                           |
//! | `options`  | how an engine runs                                       |
//! | `speculation` | whether next tokens are guessed, and how              |
//! | `slots`    | the sequences that run at once, and what to do with them |
//! | `status`   | figures of an engine                                     |
//! | `weights`  | where a model's weights are                              |

mod adapters;
mod blocks;
mod cache;
mod event;
mod failure;
mod options;
mod request;
mod sampling;
mod slots;
mod speculation;
mod status;
mod weights;

pub use adapters::AdapterUse;
pub(in crate::engine) use adapters::{is_of_adapters, namespace};
pub use blocks::{BlockEvent, BlockListener};
pub use cache::{KvDType, KvRotation, KvTypes};
pub use event::{
    DraftCount, Event, EventSender, FinishReason, GeneratedToken, PromptToken, Summary, Ticket,
};
pub use failure::Failure;
pub use options::EngineOptions;
pub use request::{Constraint, Request, MAX_TOP_LOGPROBS};
pub use sampling::{
    Aim, Dry, DynamicTemperature, MirostatVersion, Sampler, SamplerOrder, SamplingOptions, Xtc,
};
pub use slots::{SlotAction, SlotDone, SlotStatus};
pub use speculation::{DraftSource, SpeculationOptions};
pub use status::{DecodeFigures, DeviceMemory, DraftFigures, Status};
pub use weights::{ExpertsBy, WeightBytes, WeightOptions};
pub use worker::graphs::GraphUse;
