//! The rows of the register, by what runs them.

mod decoders;
mod encoders;
mod speech;

pub(super) use decoders::decoders;
pub(super) use encoders::ENCODERS;
pub(super) use speech::SPEECH;
