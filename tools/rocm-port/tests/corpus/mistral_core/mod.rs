//! mistralrs-core: the gated delta rule, the selective scan, products of experts, sorting and the largest of rows.

mod delta_rows;
mod moe_rows;
mod reference;
mod scan_rows;
mod sort_rows;

use crate::run::Rows;

/// The crate's files and their launches.
pub fn files() -> Vec<Rows> {
    vec![
        ("src/cuda/gdn.cu", delta_rows::all),
        ("src/cuda/ssm.cu", scan_rows::all),
        ("src/cuda/sort.cu", sort_rows::all),
        ("src/cuda/moe_gemv.cu", moe_rows::vectors),
        ("src/cuda/moe_gemm.cu", moe_rows::tiles),
        ("src/cuda/moe_gemm_wmma.cu", moe_rows::matrices),
    ]
}
