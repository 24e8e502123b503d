//! Composable Kernel's attention.

use super::definition::shared;

shared! {
    /// Sizes, and strides in elements.
    struct Sizes {
        rows: i32,
        keys: i32,
        heads: i32,
        heads_per_kv_head: i32,
        scale: f32,
        q_row: i32,
        k_row: i32,
        v_row: i32,
        out_row: i32,
        q_head: i32,
        k_head: i32,
        v_head: i32,
        out_head: i32,
        q_sequence: i32,
        k_sequence: i32,
        v_sequence: i32,
        out_sequence: i32,
    }
}
