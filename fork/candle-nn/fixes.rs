//! Faults of candle-nn 0.11.1 that the derived crate does not have. `FIXES.md` is this list as a page; `tests/fixes.rs` has a test for
//! each that the published crate fails.

use candle_derive::{Edit, Fix};

const ROPE: &str = "src/rotary_emb.rs";

pub const FIXES: &[Fix] = &[Fix {
    name: "rope with tables of its own for every sequence",
    reason: "The CPU takes tables `[batch, time, half]` that are longer than the input as if they were as long, so that all sequences but \
             the first turn by wrong angles; with one such table and one for all sequences, all turn by the first sequence's. The tables' \
             own length counts, and tables of which only one is batched, or of two lengths, are an error.",
    edits: &[
        Edit {
            file: ROPE,
            find: "            let unbatched_rope = l_cos.dims().len() == 3 && l_sin.dims().len() == 3;\n",
            replace: "            let unbatched_rope = l_cos.dims().len() == 3 && l_sin.dims().len() == 3;\n            \
                      if l_cos.dims().len().max(l_sin.dims().len()) == 3 && l_cos.dims() != l_sin.dims() {\n                \
                      candle::bail!(\"rope: batched tables have to be of one shape, cos is {:?} and sin is {:?}\", l_cos.dims(), l_sin.dims())\n            \
                      }\n            \
                      let table_len = l_cos.dim(D::Minus2)?;\n",
            count: 3,
        },
        Edit {
            file: ROPE,
            find: "i_over_2 + b_i * d / 2",
            replace: "i_over_2 + b_i * table_len * d / 2",
            count: 1,
        },
        Edit {
            file: ROPE,
            find: "i_over_2 + b_i * t * d / 2",
            replace: "i_over_2 + b_i * table_len * d / 2",
            count: 1,
        },
        Edit {
            file: ROPE,
            find: "i_d + b_i * d / 2",
            replace: "i_d + b_i * table_len * d / 2",
            count: 1,
        },
        Edit {
            file: ROPE,
            find: "i_cs + b_i * t * d / 2",
            replace: "i_cs + b_i * table_len * d / 2",
            count: 2,
        },
    ],
}];
