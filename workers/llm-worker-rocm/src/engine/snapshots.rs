//! The border to models whose memory can be saved: what sequences leave in it, as bytes.

use candle_core::Result;
use serde::{Deserialize, Serialize};

/// A part of what [`Forward::reserve`](super::forward::Forward::reserve) has reserved, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// A block of keys and values.
    Block(u32),
    /// One of layers with a sliding window, where these have their own.
    WindowBlock(u32),
    /// A slot of recurrent state.
    State(u32),
}

/// Reads and writes parts of a model's memory. Bytes are of use to the same model on the same kind of device and in the
/// same format only.
pub trait Snapshots {
    /// Identifies the model by its configuration and its weights.
    fn model(&self) -> [u8; 32];

    /// How memory is laid out, in words: kind of device, dtype, tokens of a block.
    fn format(&self) -> String;

    /// Bytes of a place of this kind.
    fn bytes(&self, place: Place) -> usize;

    /// Appends what a place holds.
    ///
    /// # Errors
    /// If there is no such place, or the device fails.
    fn read(&self, place: Place, out: &mut Vec<u8>) -> Result<()>;

    /// Overwrites a place.
    ///
    /// # Errors
    /// If there is no such place, for another number of bytes, or if the device fails.
    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<()>;
}
