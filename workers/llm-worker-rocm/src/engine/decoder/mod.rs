//! A decoder for the llama-like families: one loop, told by metadata in GGUF's terms what a model has and how.
//!
//! Weights stay in the file's formats; activations are f32, or halves on a GPU where the weights are. `traits` has what
//! only the name of the architecture tells, `config` what the metadata say, `tensors` which tensors there have to be;
//! `load` makes a `network` of them, which `decode` runs step by step with few launches, as `graphs` where it can.

mod altup;
mod block;
mod config;
mod crossing;
mod decode;
mod experts;
mod extras;
mod fingerprint;
mod float;
mod graphs;
mod head;
mod input;
mod linear;
mod load;
mod loader;
mod lora;
mod media;
mod memory;
mod mixers;
mod model;
mod network;
mod norm;
mod part;
mod per_block;
mod per_head;
mod projections;
mod rocm;
mod rotary;
mod shares;
mod snapshots;
mod temperature;
mod tensors;
mod traits;
mod unpacked;
mod xielu;

pub use config::{ConfigError, DecoderConfig};
pub(crate) use experts::MEASURED_EXPERTS;
pub use experts::{Routing, Scores};
pub(crate) use fingerprint::Notes;
pub(crate) use lora::Unused;
pub use model::{Decoder, Source};
pub(crate) use model::{Left, LeftOfDecode};
pub(crate) use network::OnBlock;
pub use part::{Part, PartSizes};
pub use snapshots::Layout;
pub use traits::{
    Activation, BlockParts, ClampedGate, DecoderTraits, EmbeddingScale, Latent, Layers, LogitScale,
    NormKind, Recurrence, Sections, Temperature,
};
