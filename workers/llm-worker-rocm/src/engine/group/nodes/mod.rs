//! One model over several hosts.
//!
//! Every host runs one process, a *node*. Node 0, the *leader*, has the engine and whatever asks it, and a
//! [`Group`](super::Group) some of whose ranks are on other nodes, the *followers*: [`Leader`] tells these each
//! [`Command`](super::Command) and collects what they say to it. What one stage hands to the next does not go this way
//! but by the collective's connections between the ranks themselves (`link`).
//!
//! Layers are divided across nodes in the order 1, 2, …, 0: the leader has the last ones, where logits are and tokens
//! are chosen.
//!
//! | Module     | Gives                                                                       |
//! |------------|-----------------------------------------------------------------------------|
//! | `about`    | what each node has and runs, compared when they meet                         |
//! | `meeting`  | how nodes meet, and what becomes of them                                     |
//! | `plan`     | who has which layers                                                         |
//! | `leader`   | node 0's side: has the others load, tells, asks                              |
//! | `follower` | the others' side: obeys                                                      |
//! | `ranks`    | a node's ranks, loaded and connected                                         |
//! | `link`     | from a stage on one node to the next one on another                          |
//! | `message`  | what leader and followers say to each other                                  |
//! | `command`  | what ranks are told and answer, as messages                                  |
//! | `tensor`   | tensors as messages                                                          |
//! | `wire`     | messages as bytes                                                            |
//!
//! A group lives or fails as a whole. How nodes find each other, prove that they belong together, and notice within
//! five seconds that one has ended, hangs or is cut off is [`candle_rocm_collective`]'s: `rendezvous` and `Lifeline`.
//! Here every connection is closed when a node fails, so that whoever waits at it goes on to say who it was; what fails
//! on several nodes at once, as the neighbours of a dead one do, waits a moment for that cause.

mod about;
mod command;
mod follower;
mod leader;
mod link;
mod meeting;
mod message;
mod plan;
mod ranks;
mod tensor;
mod wire;

pub use about::{About, Card};
pub use follower::{Follower, Joining};
pub use leader::Leader;
pub use meeting::{Fate, Met};
pub use message::Loading;
pub use plan::{NodePlan, NodeStage};
pub(crate) use ranks::lead;
pub use ranks::Part;
