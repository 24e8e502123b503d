//! Prompts: weights, chunks, tokens.
//!
//! | Module          | Gives                                                                      |
//! |-----------------|----------------------------------------------------------------------------|
//! | [`attention`]   | `(word:1.2)`, `[word]`, escapes and `BREAK`, as web UIs write them          |
//! | [`tokenizer`]   | CLIP's byte-pair tokenizer, from `tokenizer.json` or `vocab.json` and `merges.txt` |
//! | [`chunks`]      | pieces of 75 tokens between begin and end, with a weight each               |
//! | [`counting`]    | how many tokens a prompt has                                               |
//! | [`lora`]        | `<lora:name:0.8>` taken out of a prompt                                     |
//! | [`schedule`]    | `[a:b:10]`, `[a\|b]` and `AND`                                              |
//! | [`dynamic`]     | `{a\|b}` and `__wildcard__`, drawn                                         |
//! | [`wildcards`]   | files that drawn prompts take lines of                                      |
//! | [`styles`]      | named texts that prompts are put into                                      |

pub mod attention;
pub mod chunks;
pub mod counting;
pub mod dynamic;
pub mod lora;
pub mod schedule;
pub mod styles;
pub mod tokenizer;
pub mod wildcards;

pub use attention::{parse, Segment};
pub use chunks::{apply_weights, chunk, pad_to, Chunk, ChunkOptions};
pub use counting::{TokenCount, TokenCounter};
pub use tokenizer::{ClipTokenizer, Tokenize};
