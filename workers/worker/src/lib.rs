//! What candle-rocm's workers share: the frame of their servers and command lines, devices, models on disk, progress,
//! errors.
//!
//! | Module       | Gives                                                              |
//! |--------------|--------------------------------------------------------------------|
//! | [`cli`]      | command lines: environment, logging, output, common commands       |
//! | [`serve`]    | servers: the port before the model, phases, routes, figures, end   |
//! | [`http`]     | what handlers need: keys, errors, JSON, streams                    |
//! | [`device`]   | `--device auto\|cpu\|rocm[:n]` and `--devices 0,1` as types, and candle's devices for them |
//! | [`fault`]    | what a failed computation says about its device                    |
//! | [`report`]   | what GPUs are visible, what is missing and how to get it           |
//! | [`file`](mod@file) | files that others wrote: regular, of a bounded length            |
//! | [`text`]     | text that others wrote, made fit for a terminal and a log          |
//! | [`gguf`]     | a GGUF reader that trusts nothing in the file                      |
//! | [`graphs`]   | whether steps are recorded, and when that is given up              |
//! | [`hub`]      | a model argument resolved to a file: local path or Hugging Face id |
//! | [`kernels`]  | kernels compiled ahead of their use, in processes side by side      |
//! | [`memory`]   | a program of one command ends cleanly when memory runs out         |
//! | [`observe`]  | what logs and traces tell of requests                              |
//! | [`picture`]  | pictures from outside, decoded within limits                        |
//! | [`process`]  | processes: the calls that the standard library lacks                |
//! | [`progress`] | bars that appear on a terminal only                                |
//! | [`signal`]   | Ctrl-C as a flag that loops look at                                |
//! | [`ids`]      | names, seeds and tokens from the system's random numbers           |
//! | [`tokenizer_json`] | what a `tokenizer.json` may ask of the library that reads it |
//! | [`time`]     | points in time as others read them                                 |
//! | [`error`]    | one error type with the exit code that belongs to it               |

pub mod cli;
pub mod device;
pub mod error;
pub mod fault;
pub mod file;
pub mod gguf;
pub mod graphs;
pub mod http;
pub mod hub;
pub mod ids;
pub mod json;
pub mod kernels;
pub mod memory;
pub mod observe;
pub mod picture;
pub mod process;
pub mod progress;
pub mod report;
pub mod serve;
pub mod signal;
pub mod text;
pub mod time;
pub mod tokenizer_json;

pub use error::{Error, Result};
