//! How each architecture is loaded.
//!
//! | Module      | Gives                                                                  |
//! |-------------|------------------------------------------------------------------------|
//! | `attention` | architectures whose state is keys and values                           |

mod attention;

pub(crate) use attention::{bigcode, falcon, helium, olmo, stable_lm};
