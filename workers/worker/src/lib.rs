//! What candle-rocm's workers share: devices, models on disk, progress, errors.
//!
//! | Module       | Gives                                                              |
//! |--------------|--------------------------------------------------------------------|
//! | [`device`]   | `--device auto\|cpu\|rocm[:n]` as a type, and the candle device for it |
//! | [`report`]   | what GPUs are visible, what is missing and how to get it           |
//! | [`gguf`]     | a GGUF reader that trusts nothing in the file                      |
//! | `http`       | with the feature `http`: what the workers' servers share           |
//! | [`hub`]      | a model argument resolved to a file: local path or Hugging Face id |
//! | [`progress`] | bars that appear on a terminal only                                |
//! | [`signal`]   | Ctrl-C as a flag that loops look at                                |
//! | [`error`]    | one error type with the exit code that belongs to it               |

pub mod device;
pub mod error;
pub mod gguf;
#[cfg(feature = "http")]
pub mod http;
pub mod hub;
pub mod progress;
pub mod report;
pub mod signal;

pub use error::{Error, Result};
