//! Sound: from a file's bytes to what models hear.
//!
//! | Module       | Gives                                                                               |
//! |--------------|-------------------------------------------------------------------------------------|
//! | [`decode`]   | WAV, FLAC, MP3, Ogg Vorbis, AAC and their containers to samples, within limits      |
//! | [`resample`] | samples at another rate                                                             |
//! | [`mel`]      | logarithms of power in mel bands: the input of encoders                             |
//! | [`tower`]    | Whisper's encoder, which many models that hear have, on a device                    |

pub mod decode;
pub mod mel;
pub mod resample;
pub mod tower;

pub use decode::{decode, SoundError, SoundLimits};
pub use mel::{LogMel, MelOptions};
pub use tower::{Tower, TowerShape};
