//! Damaged and hostile input for everything that the workers read.
//!
//! A [`Target`] damages small valid inputs (`corpus/`) and reads the result as a worker would. What it must not do is
//! the same for all of them: panic, end the process, take longer than a few seconds, or take more memory than its
//! bound. Everything depends on a seed and a number: `scripts/fuzz TARGET --seed S --first N --count 1` is the same
//! input everywhere.
//!
//! | Module     | Gives                                                                      |
//! |------------|----------------------------------------------------------------------------|
//! | [`random`] | numbers of a seed                                                          |
//! | [`mutate`] | damage to bytes, to text and to trees of JSON                              |
//! | [`corpus`] | the valid inputs                                                           |
//! | [`memory`] | the allocator that counts                                                  |
//! | [`target`] | what a target is, and the list of them                                     |
//! | [`child`]  | inputs tried one after the other in a process of its own                   |
//! | [`parent`] | the process that starts others, watches them, and writes down what was found |

pub mod child;
pub mod corpus;
pub mod memory;
pub mod mutate;
pub mod parent;
pub mod random;
pub mod target;
mod targets;

pub use random::Random;
pub use target::{Target, Verdict};
