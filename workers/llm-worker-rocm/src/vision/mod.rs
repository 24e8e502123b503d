//! Pictures: from a file's pixels to rows that stand in for tokens' embeddings.
//!
//! | Module       | Gives                                                                              |
//! |--------------|------------------------------------------------------------------------------------|
//! | `kinds`      | the table of encoders: what each does in its own way, what its prompts look like    |
//! | `config`     | an encoder's shape, from `clip.*` metadata in llama.cpp's terms                      |
//! | `resample`   | pictures at another size, as Pillow makes them                                      |
//! | `preprocess` | pixels as an encoder takes them                                                     |
//! | `sizes`      | sizes that encoders take                                                            |
//! | `tiles`      | pictures cut into tiles                                                             |
//! | `video`      | frames of a video: which ones, and as an encoder takes them                         |
//! | `attention`  | attention of encoders                                                               |
//! | `positions`  | where patches are                                                                   |
//! | `block`      | a block of a vision transformer                                                     |
//! | `tower`      | a vision transformer                                                                |
//! | `projector`  | from its width to the language model's                                              |
//! | `encoder`    | both together                                                                       |
//! | `file`       | the encoder of a model: in its folder, or in an `mmproj` file beside its GGUF file    |
//!
//! A folder is seen in the terms of an `mmproj` file (`hf`), so that both are read by the same code.

pub(crate) mod attention;
mod block;
mod config;
mod encoder;
mod file;
mod kinds;
mod positions;
mod preprocess;
mod projector;
mod resample;
mod sizes;
mod tiles;
mod tower;
mod video;
pub(crate) mod weights;

pub use config::VisionConfig;
pub(crate) use encoder::activations;
pub use encoder::Encoder;
pub use file::VisionFile;
pub(crate) use kinds::{traits_of, traits_of_folder, Kind};
pub use preprocess::{Pixels, Tile};
pub use tiles::Lines;
pub use video::{Recording, Video, VideoMaker, VideoOptions};

/// An encoder's shape for tests of what it takes.
#[cfg(test)]
fn test_config(projector: &str) -> VisionConfig {
    use worker::gguf::{Array, Gguf, Value};
    let count = |key: &str, value: u32| (format!("clip.vision.{key}"), Value::U32(value));
    let three = |key: &str| {
        let numbers = Value::Array(Array::F32(vec![0.5; 3]));
        (format!("clip.vision.{key}"), numbers)
    };
    let name = Value::String(projector.to_string());
    let metadata = [
        ("clip.projector_type".to_string(), name),
        count("embedding_length", 32),
        count("attention.head_count", 2),
        count("feed_forward_length", 32),
        count("block_count", 1),
        count("projection_dim", 64),
        count("patch_size", 14),
        count("image_size", 56),
        count("n_wa_pattern", 2),
        three("image_mean"),
        three("image_std"),
    ];
    VisionConfig::from_gguf(&Gguf::from_parts(metadata, [])).unwrap()
}
