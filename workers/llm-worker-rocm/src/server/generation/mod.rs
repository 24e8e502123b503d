//! From a request's fields to answers: what every API that generates text has in common.
//!
//! An API is a map of its fields onto [`SamplingFields`] (and [`ChatFields`] for chats), and a [`Writer`] that puts the
//! parts of an answer into its own frames; a whole answer is an [`Answer`].
//!
//! | Module       | Gives                                                                               |
//! |--------------|-------------------------------------------------------------------------------------|
//! | [`sampling`] | how to choose tokens, and the limits of a request                                   |
//! | [`bias`]     | what is added to logits                                                             |
//! | [`form`]     | what an answer must look like                                                       |
//! | [`calls`]    | what calls in an answer must look like                                              |
//! | [`infill`]     | prompts of models that fill in the middle of a text                                 |
//! | [`length`]   | texts that are too long, told before they are tokenized                             |
//! | [`prepare`]  | fields and a prompt, checked, as a request to the engine                            |
//! | [`course`]   | a request in the engine, and its course as metrics                                  |
//! | [`trace`]    | the course of an answer, for the trace of its request                               |
//! | [`answers`]  | all answers to a request: their parts as they come, or each of them whole           |
//! | [`text`]     | answers in plain text                                                               |
//! | [`chat`]     | chats: from messages to a prompt, answers with reasoning and calls                  |

mod answers;
mod bias;
mod calls;
mod chat;
mod course;
mod form;
mod infill;
mod length;
mod prepare;
mod sampling;
mod text;
mod trace;

pub(super) use answers::{Answer, Answers, End, Parse, Writer};
pub use chat::ChatFields;
pub(super) use chat::{Call, ChatParser, Message};
pub(super) use infill::Infill;
pub(super) use length::check_length;
pub(super) use prepare::{Prompt, Wishes};
pub(super) use sampling::Texts;
pub(super) use sampling::{check_top_logprobs, prompt_logprobs, MAX_CHOICES};
pub use sampling::{AdapterFields, SamplingFields};
pub(super) use text::PlainText;
