//! Networks that make of a picture what ControlNets want to see.

pub mod hed;
pub mod lineart;
