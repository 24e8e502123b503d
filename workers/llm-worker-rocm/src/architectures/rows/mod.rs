//! The rows of the register, by what runs them.

mod decoders;
mod encoders;

pub(super) use decoders::decoders;
pub(super) use encoders::ENCODERS;
