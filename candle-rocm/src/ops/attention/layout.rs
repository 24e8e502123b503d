//! How paged caches lie in memory.

/// Strides of `[blocks, block_size, kv_heads, head_size]` in memory ordered `[blocks, kv_heads, block_size,
/// head_size]`, in elements.
pub fn strides(block_size: usize, kv_heads: usize, head_size: usize) -> [usize; 4] {
    let head = block_size * head_size;
    [kv_heads * head, head_size, head, 1]
}
