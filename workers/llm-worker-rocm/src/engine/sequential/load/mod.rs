//! How each architecture is loaded.
//!
//! | Module      | Gives                                                                  |
//! |-------------|------------------------------------------------------------------------|
//! | `attention` | architectures whose state is keys and values                           |
//! | `recurrent` | those whose state does not grow, or only within a window               |
//! | `lfm2`      | LFM2, of a folder and of a GGUF file                                   |

mod attention;
mod lfm2;
mod recurrent;

pub(crate) use attention::{bigcode, deepseek2, falcon, granite_hybrid, helium, olmo, stable_lm};
pub(crate) use lfm2::{lfm2, LFM2_GGUF};
pub(crate) use recurrent::{mamba, mamba2, recurrent_gemma};
