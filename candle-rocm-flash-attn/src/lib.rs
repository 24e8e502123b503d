//! Flash attention for candle on AMD GPUs, with the functions and the order of arguments of `candle-flash-attn` 0.11.1:
//! code moves over by changing the name of the crate.
//!
//! | Sequences | Functions |
//! |---|---|
//! | of one length, `(batch, length, heads, head_size)` | [`flash_attn`], [`flash_attn_windowed`], [`flash_attn_alibi`], [`flash_attn_alibi_windowed`], [`flash_attn_alibi_windowed_softcap`] |
//! | behind each other, `(total, heads, head_size)` | [`flash_attn_varlen`], [`flash_attn_varlen_windowed`], [`flash_attn_varlen_alibi`], [`flash_attn_varlen_alibi_windowed`], [`flash_attn_varlen_alibi_windowed_softcap`] |
//! | with dropout, in training | [`flash_attn_dropout`], [`flash_attn_alibi_windowed_softcap_dropout`], [`flash_attn_varlen_dropout`], [`flash_attn_varlen_alibi_windowed_softcap_dropout`] |
//! | with keys and values in a paged cache | [`flash_attn_varlen_paged_windowed`]; [`paged`] for a cache that is written and read in place, also of 8 bits |
//!
//! All compute `softmax(q kᵀ scale) v` for each head, without the matrix of scores in memory. Keys and values may have
//! fewer heads than queries, if their number divides that of the queries. The last row of a sequence is aligned with
//! its last key: with a window, the row at position `p` sees keys from `p - left` to `p + right`, where row `i` of
//! `rows` stands at position `i + keys - rows`; `causal` is a right window of 0. A row that sees no key gives zeros.
//! ALiBi adds `-slope |p - key|`, `softcap` bounds scores before by `softcap tanh(score / softcap)`.
//!
//! Tensors are f16, bf16 or f32; queries, keys and values of one dtype. Any strides will do; those whose last dimension
//! is not dense are copied first. On a ROCm device the work goes to the tier that suits best (see
//! [`candle_rocm::ops::attention`]); on the CPU, to a plain implementation, so that models can be tested without a GPU.
//!
//! # Training
//!
//! `backward` gives the gradients of queries, keys and values on every device, of all functions but those with a paged
//! cache and of all their options; ALiBi slopes have none. Kernels of gradients compute the scores again, so that memory
//! grows with the sequences' lengths, not with their squares, and give the same result each time. [`flash_attn_dropout`]
//! and its like drop weights of the softmax: which ones, a seed says, the same on every device. With a probability of 0
//! they are their namesakes, bit for bit.
//!
//! # Composable Kernel
//!
//! With the feature `ck` the build compiles AMD's own attention for head sizes 64 and 128, f16 and bf16, with and
//! without `causal`, of one length and behind each other: 16 kernels for each arch. Whatever else a problem has
//! (windows, ALiBi, softcap, paged caches, other head sizes) goes to the tiers of this project, as everything does
//! without the feature.
//!
//! ```sh
//! export CK_DIR=/opt/rocm CANDLE_ROCM_CK_ARCHS=gfx942,gfx1201    # gfx90a, gfx942, gfx950 and gfx12 have it
//! cargo build --release --features ck
//! ```
//!
//! Only headers of Composable Kernel are used, no library of it, and none of its code is in this repository:
//! `scripts/ck` fetches the version that this was written against. The compiler is clang (`CANDLE_ROCM_CLANG`), which
//! needs HIP's headers (`ROCM_PATH`). `CANDLE_ROCM_ATTENTION=ck` makes a problem that has no instance an error instead
//! of another tier's work.
//!
//! ```no_run
//! use candle::{DType, Device, Tensor};
//!
//! # fn main() -> candle::Result<()> {
//! let device = Device::new_rocm(0)?;
//! let q = Tensor::randn(0f32, 1., (1, 4096, 32, 128), &device)?.to_dtype(DType::F16)?;
//! let k = Tensor::randn(0f32, 1., (1, 4096, 8, 128), &device)?.to_dtype(DType::F16)?;
//! let out = candle_rocm_flash_attn::flash_attn(&q, &k, &k, 1. / 128f32.sqrt(), true)?;
//! # Ok(())
//! # }
//! ```

mod backward;
mod cpu;
mod op;
pub mod paged;

use candle::{Result, Tensor};
use op::{FlashAttn, Sequences};
use std::sync::OnceLock;

/// What the functions differ in, besides sequences.
fn options(
    scale: f32,
    slopes: Option<&Tensor>,
    left: Option<usize>,
    right: Option<usize>,
    softcap: Option<f32>,
) -> FlashAttn {
    FlashAttn {
        scale,
        slopes: slopes.cloned(),
        left,
        right,
        softcap,
        sequences: Sequences::Fixed,
        dropout: None,
        is_tracked: false,
        log_sum_exp: OnceLock::new(),
    }
}

fn causal_right(causal: bool) -> Option<usize> {
    causal.then_some(0)
}

/// Attention of `q`, `(batch, seq_len_q, num_heads, head_size)`, to `k` and `v`,
/// `(batch, seq_len_kv, num_heads_kv, head_size)`; the result has the shape of `q`.
///
/// # Errors
/// For shapes that do not fit together, dtypes other than f16, bf16 and f32, and head sizes that are no multiple of 8
/// or exceed 512.
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, causal: bool) -> Result<Tensor> {
    let op = options(scale, None, None, causal_right(causal), None);
    op.apply(q, k, v)
}

/// [`flash_attn`] with limits to what a row sees before and behind its position.
///
/// # Errors
/// Those of [`flash_attn`].
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
) -> Result<Tensor> {
    let op = options(scale, None, left, right, None);
    op.apply(q, k, v)
}

/// [`flash_attn`] with ALiBi slopes, f32 of shape `(num_heads)`.
///
/// # Errors
/// Those of [`flash_attn`].
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    slopes: &Tensor,
    scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let right = causal_right(causal);
    let op = options(scale, Some(slopes), None, right, None);
    op.apply(q, k, v)
}

/// [`flash_attn_windowed`] with ALiBi slopes, f32 of shape `(num_heads)`.
///
/// # Errors
/// Those of [`flash_attn`].
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    slopes: &Tensor,
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
) -> Result<Tensor> {
    let op = options(scale, Some(slopes), left, right, None);
    op.apply(q, k, v)
}

/// [`flash_attn_alibi_windowed`] with optional slopes and a bound of the scores.
///
/// # Errors
/// Those of [`flash_attn`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    slopes: Option<&Tensor>,
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let op = options(scale, slopes, left, right, Some(softcap));
    op.apply(q, k, v)
}

/// Attention of sequences of different lengths. `q` is `(total_q, num_heads, head_size)`, `k` and `v` are
/// `(total_kv, num_heads_kv, head_size)`; `seqlens_q` and `seqlens_k`, u32 or i32 of `batch + 1` elements, are running
/// sums of the sequences' lengths from 0, and `max_seqlen_q` and `max_seqlen_k` no less than the longest. The result
/// has the shape of `q`.
///
/// # Errors
/// Those of [`flash_attn`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let op = options(scale, None, None, causal_right(causal), None);
    let op = op.packed(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    op.apply(q, k, v)
}

/// [`flash_attn_varlen`] with limits to what a row sees before and behind its position.
///
/// # Errors
/// Those of [`flash_attn`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
) -> Result<Tensor> {
    let op = options(scale, None, left, right, None);
    let op = op.packed(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    op.apply(q, k, v)
}

/// [`flash_attn_varlen`] with ALiBi slopes, f32 of shape `(num_heads)`.
///
/// # Errors
/// Those of [`flash_attn`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let right = causal_right(causal);
    let op = options(scale, Some(slopes), None, right, None);
    let op = op.packed(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    op.apply(q, k, v)
}

/// [`flash_attn_varlen_windowed`] with ALiBi slopes, f32 of shape `(num_heads)`.
///
/// # Errors
/// Those of [`flash_attn`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
) -> Result<Tensor> {
    let op = options(scale, Some(slopes), left, right, None);
    let op = op.packed(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    op.apply(q, k, v)
}

/// [`flash_attn_varlen_alibi_windowed`] with optional slopes and a bound of the scores.
///
/// # Errors
/// Those of [`flash_attn`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let op = options(scale, slopes, left, right, Some(softcap));
    let op = op.packed(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    op.apply(q, k, v)
}

/// [`flash_attn`] in training: each weight of the softmax is 0 with probability `dropout`, and the others are divided by
/// `1 - dropout`.
///
/// `seed` says which weights these are, through the generator Philox 4x32-10, the same on every device (see
/// [`candle_rocm::ops::attention::Dropout`]): pass another one each time, such as a random number. The backward pass
/// finds them again.
///
/// # Errors
/// Those of [`flash_attn`], and unless `dropout` is at least 0 and less than 1.
pub fn flash_attn_dropout(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scale: f32,
    causal: bool,
    dropout: f32,
    seed: u64,
) -> Result<Tensor> {
    let op = options(scale, None, None, causal_right(causal), None);
    op.with_dropout(dropout, seed)?.apply(q, k, v)
}

/// [`flash_attn_dropout`] with all options of [`flash_attn_alibi_windowed_softcap`].
///
/// # Errors
/// Those of [`flash_attn_dropout`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_alibi_windowed_softcap_dropout(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    slopes: Option<&Tensor>,
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
    softcap: Option<f32>,
    dropout: f32,
    seed: u64,
) -> Result<Tensor> {
    let op = options(scale, slopes, left, right, softcap);
    op.with_dropout(dropout, seed)?.apply(q, k, v)
}

/// [`flash_attn_varlen`] with dropout, otherwise as [`flash_attn_dropout`].
///
/// # Errors
/// Those of [`flash_attn_dropout`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_dropout(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    scale: f32,
    causal: bool,
    dropout: f32,
    seed: u64,
) -> Result<Tensor> {
    let op = options(scale, None, None, causal_right(causal), None);
    let op = op.packed(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    op.with_dropout(dropout, seed)?.apply(q, k, v)
}

/// [`flash_attn_varlen_dropout`] with all options of [`flash_attn_varlen_alibi_windowed_softcap`].
///
/// # Errors
/// Those of [`flash_attn_dropout`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_alibi_windowed_softcap_dropout(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
    softcap: Option<f32>,
    dropout: f32,
    seed: u64,
) -> Result<Tensor> {
    let op = options(scale, slopes, left, right, softcap);
    let op = op.packed(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    op.with_dropout(dropout, seed)?.apply(q, k, v)
}

/// [`flash_attn_varlen_windowed`] with keys and values in the blocks of a cache,
/// `(num_blocks, page_block_size, num_heads_kv, head_size)`: key `j` of sequence `b` is entry `j % page_block_size` of
/// block `table[b, j / page_block_size]`. `table` is u32 or i32 of shape `(batch, max_blocks)`.
///
/// `seen_ranges`, i32 of shape `(batch, max_ranges, 2)`, are ranges of positions, from the first to before the second,
/// that see each other whatever the window says.
///
/// # Errors
/// Those of [`flash_attn`], and if `page_block_size` is not that of the cache.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    table: &Tensor,
    seen_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    if k.dims().get(1) != Some(&page_block_size) {
        candle::bail!(
            "flash-attn: page_block_size {page_block_size} is not that of a cache of shape {:?}",
            k.shape()
        )
    }
    let op = options(scale, None, left, right, softcap);
    let op = op.paged(
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        table,
        seen_ranges,
    );
    op.apply(q, k, v)
}
