//! Pictures: from a file's pixels to rows that stand in for tokens' embeddings.
//!
//! | Module       | Gives                                                                              |
//! |--------------|------------------------------------------------------------------------------------|
//! | `kinds`      | the table of encoders: what each does in its own way, what its prompts look like    |
//! | `config`     | an encoder's shape, from `clip.*` metadata in llama.cpp's terms                      |
//! | `resample`   | pictures at another size, as Pillow makes them                                      |
//! | `preprocess` | pixels as an encoder takes them                                                     |
//! | `attention`  | attention of encoders                                                               |
//! | `tower`      | a vision transformer                                                                |
//! | `projector`  | from its width to the language model's                                              |
//! | `encoder`    | both together                                                                       |
//! | `file`       | the encoder of a model: in its folder, or in an `mmproj` file beside its GGUF file    |
//!
//! A folder is seen in the terms of an `mmproj` file (`hf`), so that both are read by the same code.

pub(crate) mod attention;
mod config;
mod encoder;
mod file;
mod kinds;
mod preprocess;
mod projector;
mod resample;
mod tower;
pub(crate) mod weights;

pub use config::VisionConfig;
pub(crate) use encoder::activations;
pub use encoder::Encoder;
pub use file::VisionFile;
pub(crate) use kinds::{traits_of, traits_of_folder, Kind};
pub use preprocess::Pixels;
