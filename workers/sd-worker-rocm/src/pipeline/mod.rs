//! A model and the way from a request to pictures.

mod types;

pub use types::{
    Control, Defaults, Family, Generated, ImageRequest, Init, Lora, ModelInfo, PipelineOptions,
    Precision, Progress, Stage, Switch, Timings,
};
