//! What host and device code share, defined once: structures that kernels take, and numbers that both must know.
//!
//! Each module here is Rust, and the build writes it as C++ into the header of its name, which device files include:
//! `#include "shared/rope.h"`. Everything there is in namespace `device`.

pub mod attention;
pub mod ck;
pub mod collective;
mod definition;
pub mod f8;
pub mod float8;
pub mod latent;
pub mod matmul;
pub mod quantized;
mod recurrent;
mod tensor;

pub use definition::Shared;
pub use recurrent::{causal_conv, delta_rule};
pub use tensor::{
    backward, conv, copy, dims, epilogue, gated, group_norm, index_error, indexing, moe, norm,
    pool, rand, reduce, rope, rows, sampling, scan, sort, state_space, upsample,
};

/// Every header: its path below `hip` and its text.
pub fn headers() -> Vec<(&'static str, String)> {
    macro_rules! headers {
        ($($module:ident),* $(,)?) => {
            vec![$((concat!("shared/", stringify!($module), ".h"), $module::header())),*]
        };
    }
    headers![
        attention,
        backward,
        causal_conv,
        ck,
        collective,
        conv,
        copy,
        delta_rule,
        dims,
        float8,
        f8,
        epilogue,
        gated,
        group_norm,
        index_error,
        indexing,
        latent,
        matmul,
        moe,
        norm,
        pool,
        quantized,
        rand,
        reduce,
        rope,
        rows,
        sampling,
        scan,
        sort,
        state_space,
        upsample,
    ]
}
