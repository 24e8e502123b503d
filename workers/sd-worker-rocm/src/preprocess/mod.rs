//! What ControlNets want to see of a picture: edges, lines, greys.
//!
//! | Module      | Gives                                                                                   |
//! |-------------|-----------------------------------------------------------------------------------------|
//! | [`kind`]    | the preprocessors, by name                                                              |
//! | [`canny`]   | edges, as OpenCV finds them                                                             |
//! | [`filters`] | lines, scribbles and greys without a network                                            |
//! | [`network`] | networks from files                                                                     |

pub mod canny;
pub mod filters;
pub mod kind;
pub mod network;

pub use kind::{Kind, Preprocessor};
