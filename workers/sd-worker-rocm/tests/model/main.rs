//! Models and pipeline. `CANDLE_ROCM_TEST_DEVICE` names the device (`cpu` if unset), so that the same tests run on
//! both.

mod checkpoints;
mod classify;
mod common;
mod devices;
mod editing;
mod float8;
mod float8_files;
mod flux;
mod hashed;
mod language;
mod language_files;
mod language_pipelines;
mod language_transformers;
mod lora;
mod lora_kinds;
mod networks;
mod packed;
mod parity;
mod pipeline;
mod pipelines;
mod small;
mod stored;
mod unets;
mod upscalers;
mod video_networks;
