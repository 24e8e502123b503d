//! What ControlNets want to see of a picture: edges, lines, greys, depths, poses.
//!
//! | Module            | Gives                                                                             |
//! |-------------------|-----------------------------------------------------------------------------------|
//! | [`kind`]          | the preprocessors, by name                                                        |
//! | [`preprocessor`]  | one with its settings                                                             |
//! | [`canny`]         | edges, as OpenCV finds them                                                       |
//! | [`filters`]       | lines, scribbles and greys without a network                                      |
//! | [`shuffle`]       | a picture's pixels in another order                                               |
//! | [`network`]       | networks from files and folders, at work                                          |
//! | [`library`]       | which networks there are, and what kind they are                                  |
//! | [`seeing`]        | how networks see pictures                                                         |
//! | [`planes`]        | depths and normals as pictures                                                    |
//! | [`pose`]          | people, found and drawn                                                           |
//! | [`lines`]         | straight lines, found and drawn                                                   |

pub mod canny;
pub mod filters;
pub mod kind;
pub mod library;
pub mod lines;
pub mod network;
pub mod planes;
pub mod pose;
pub mod preprocessor;
pub mod seeing;
pub mod shuffle;

pub use kind::Kind;
pub use library::{NetworkFolders, NetworkKind};
pub use preprocessor::Preprocessor;
