//! How each architecture is loaded.
//!
//! | Module      | Gives                                                                  |
//! |-------------|------------------------------------------------------------------------|
//! | `attention` | architectures whose state is keys and values                           |
//! | `lfm2`      | LFM2, of a folder and of a GGUF file                                   |

mod attention;
mod lfm2;

pub(crate) use attention::{bigcode, falcon, helium, olmo, stable_lm};
pub(crate) use lfm2::{lfm2, LFM2_GGUF};
