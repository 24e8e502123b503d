//! LLM inference on AMD GPUs, from the command line.
//!
//! | Module        | Gives                                                                       |
//! |---------------|-----------------------------------------------------------------------------|
//! | [`model`]     | a model file opened, checked and loaded: engine, tokenizer, chat template   |
//! | [`hf`]        | a Hugging Face model folder seen as a GGUF file                             |
//! | [`architectures`] | the one register of what models there are and what runs them            |
//! | [`engine`]    | the thread that runs a model for many requests at once                      |
//! | [`tokenizer`] | text to tokens and back, built from the file                                |
//! | [`adapters`]  | low-rank adapters of models, from GGUF files and PEFT folders               |
//! | [`chat`]      | chat messages to prompt text, by the model's template                       |
//! | [`jinja`]     | the language of chat templates                                              |
//! | [`tools`]     | tool calls and reasoning in answers                                         |
//! | [`media`]     | where pictures and sounds stand in prompts                                  |
//! | [`vision`]    | pictures: their pixels and encoders                                         |
//! | [`sound`]     | sounds in prompts: their frames and encoders                                |
//! | [`audio`]     | sounds: their samples, spectrograms and encoder                             |
//! | [`whisper`]   | speech to text                                                              |
//! | [`grammar`]   | answers that follow a grammar                                               |
//! | [`kernels`]   | what models use of the kernels, to be compiled ahead                        |
//! | [`embedding`] | texts to vectors                                                            |
//! | [`completion`] | a request's tokens as text                                                |
//! | [`batch`]     | files of requests, answered                                                 |
//! | [`kv_events`] | what the cache knows, for routers                                           |
//! | [`server`]    | the HTTP server                                                             |
//! | [`perplexity`] | how well a model predicts a text                                           |
//! | [`quantize`]  | a model at another precision                                                |
//! | [`doctor`]    | the command `doctor`: a small model's tokens beside what `rocm-doctor` examines |
//! | [`cli`]       | the command line                                                            |

pub mod adapters;
pub mod architectures;
pub mod audio;
pub mod batch;
pub mod chat;
pub mod cli;
pub mod completion;
mod description;
pub mod doctor;
pub mod embedding;
pub mod engine;
mod folder;
pub mod grammar;
pub mod hf;
pub mod jinja;
pub mod kernels;
pub mod kv_events;
pub mod media;
pub mod model;
pub mod perplexity;
pub mod quantize;
mod samplers;
pub mod server;
pub mod sound;
pub mod split;
pub mod tokenizer;
pub mod tools;
pub mod vision;
pub mod whisper;
