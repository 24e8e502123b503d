//! Sounds in prompts: from samples to rows that stand in for tokens' embeddings.
//!
//! | Module     | Gives                                                                           |
//! |------------|---------------------------------------------------------------------------------|
//! | `kinds`    | the table of encoders: what each does in its own way, what its prompts look like |
//! | `config`   | an encoder's shape, from `clip.audio.*` metadata in llama.cpp's terms            |
//! | `features` | samples as an encoder takes them                                                |
//! | `conformer` | Gemma's encoder                                                                |
//! | `encoder`  | Whisper's encoder with what makes rows of the language model's width            |
//! | `file`     | the encoder of a model: in its folder, or in an `mmproj` file                    |
//!
//! A folder is seen in the terms of an `mmproj` file (`hf`), so that both are read by the same code.

mod config;
mod conformer;
mod encoder;
mod features;
mod file;
mod kinds;

pub use config::SoundConfig;
pub use encoder::SoundEncoder;
pub use features::{Frames, Piece};
pub use file::SoundFile;
pub(crate) use kinds::{traits_of, Kind};
