//! `moe_gemm` and `moe_gemm_gguf` on every device but CUDA's, where upstream has kernels of its own and refuses
//! elsewhere.
//!
//! A slot is a pair of an input row and one of its experts. The slots of row `r` are `r * topk` to `(r + 1) * topk`;
//! with `topk_weights` the input already has a row for each slot. Slots come in the order of their experts, as sorting
//! the flattened choices gives them: `sorted_token_ids[i]` is a slot, `experts_ids[i]` its expert. Row `slot` of the
//! result is the input's row times the transposed matrix of the slot's expert, times the slot's `topk_weights`.
//! `is_prefill` chooses between kernels on CUDA; here the shapes do.

use std::borrow::Cow;

use candle::quantized::{QMatMul, QStorage, QTensor};
use candle::{DType, Module, Result, Tensor};

#[cfg(feature = "rocm")]
mod rocm;

/// The input's rows times the matrices of their experts: `input` `[rows, k]` and `weights` `[experts, n, k]` of one
/// float dtype, `topk_weights` f32 with an element for each slot, ids u32 `[slots]`. Gives `[slots, n]` in the input's
/// dtype.
pub fn moe_gemm(
    input: &Tensor,
    weights: &Tensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    _is_prefill: bool,
) -> Result<Tensor> {
    let (experts, n, k) = weights.dims3()?;
    let sizes = Sizes::new(input, topk_weights.as_ref(), topk, (experts, n, k))?;
    sizes.check_ids(sorted_token_ids, experts_ids)?;
    #[cfg(feature = "rocm")]
    if let Some(result) = rocm::moe_gemm(
        input,
        weights,
        topk_weights.as_ref(),
        sorted_token_ids,
        experts_ids,
        &sizes,
    )? {
        return Ok(result);
    }
    let runs = Runs::new(sorted_token_ids, experts_ids, &sizes)?;
    let result = runs.products(input, &sizes, |expert, rows| {
        rows.matmul(&weights.get(expert)?.t()?)
    })?;
    scaled(result, topk_weights.as_ref())
}

/// [`moe_gemm`] with quantized `weights` and an input of f32; gives f32. `dtype` is the type that CUDA's kernel for
/// long inputs computes in; here the input stays f32.
#[allow(clippy::too_many_arguments)]
pub fn moe_gemm_gguf(
    input: &Tensor,
    weights: &QTensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    _is_prefill: bool,
    _dtype: DType,
) -> Result<Tensor> {
    if input.dtype() != DType::F32 {
        candle::bail!(
            "moe_gemm_gguf: the input has to be f32, not {:?}",
            input.dtype()
        )
    }
    let (experts, n, k) = weights.shape().dims3()?;
    let sizes = Sizes::new(input, topk_weights.as_ref(), topk, (experts, n, k))?;
    sizes.check_ids(sorted_token_ids, experts_ids)?;
    // The kernel has no gradient; products one by one do.
    if input.device().is_rocm() && !input.track_op() {
        // The kernel wants the experts in the order of the slots.
        let experts_of_slots = Tensor::zeros(sizes.slots, DType::U32, input.device())?.scatter(
            sorted_token_ids,
            experts_ids,
            0,
        )?;
        let ids = experts_of_slots.reshape((sizes.rows, sizes.per_row))?;
        let rows = input.reshape((sizes.rows, 1, k))?;
        let result = weights.indexed_moe_forward(&rows, &ids)?;
        return scaled(result.reshape((sizes.slots, n))?, topk_weights.as_ref());
    }
    let runs = Runs::new(sorted_token_ids, experts_ids, &sizes)?;
    let data = weights.data()?;
    let bytes = data.len() / experts.max(1);
    let result = runs.products(input, &sizes, |expert, rows| {
        let matrix = Cow::Borrowed(&data[expert * bytes..][..bytes]);
        let matrix = QStorage::from_data(matrix, input.device(), weights.dtype())?;
        QMatMul::from_qtensor(QTensor::new(matrix, (n, k))?)?.forward(rows)
    })?;
    scaled(result, topk_weights.as_ref())
}

/// Each row times its factor, which is f32 whatever the rows are.
fn scaled(rows: Tensor, factors: Option<&Tensor>) -> Result<Tensor> {
    let Some(factors) = factors else {
        return Ok(rows);
    };
    let dtype = rows.dtype();
    let wide = if dtype == DType::F64 {
        dtype
    } else {
        DType::F32
    };
    let factors = factors.reshape((rows.dim(0)?, 1))?.to_dtype(wide)?;
    rows.to_dtype(wide)?
        .broadcast_mul(&factors)?
        .to_dtype(dtype)
}

/// What the shapes of the operands say.
struct Sizes {
    /// Rows of the input.
    rows: usize,
    /// Slots of each row.
    per_row: usize,
    slots: usize,
    experts: usize,
    /// Columns of the result.
    n: usize,
}

impl Sizes {
    fn new(
        input: &Tensor,
        topk_weights: Option<&Tensor>,
        topk: usize,
        (experts, n, k): (usize, usize, usize),
    ) -> Result<Self> {
        let (rows, input_k) = input.dims2()?;
        let per_row = if topk_weights.is_some() { 1 } else { topk };
        let slots = rows * per_row;
        if input_k != k {
            candle::bail!(
                "moe_gemm: rows of {input_k} elements do not fit matrices of {experts} experts with {n} by {k}"
            )
        }
        if let Some(weights) = topk_weights.filter(|w| w.elem_count() != slots) {
            candle::bail!(
                "moe_gemm: topk_weights {:?} have not one element for each of {slots} slots",
                weights.dims()
            )
        }
        Ok(Self {
            rows,
            per_row,
            slots,
            experts,
            n,
        })
    }

    fn check_ids(&self, sorted_token_ids: &Tensor, experts_ids: &Tensor) -> Result<()> {
        for ids in [sorted_token_ids, experts_ids] {
            if ids.dims() != [self.slots] || ids.dtype() != DType::U32 {
                candle::bail!(
                    "moe_gemm: ids have to be u32 of shape [{}], not {:?} of shape {:?}",
                    self.slots,
                    ids.dtype(),
                    ids.dims()
                )
            }
        }
        Ok(())
    }
}

/// The slots of each expert, on the host.
struct Runs {
    /// Slots in the order given.
    slots: Vec<u32>,
    /// Expert, and where its slots end.
    ends: Vec<(usize, usize)>,
    /// Position of each slot.
    positions: Vec<u32>,
}

impl Runs {
    fn new(sorted_token_ids: &Tensor, experts_ids: &Tensor, sizes: &Sizes) -> Result<Self> {
        let slots = sorted_token_ids.to_vec1::<u32>()?;
        let experts = experts_ids.to_vec1::<u32>()?;
        let mut positions = vec![u32::MAX; sizes.slots];
        let mut ends: Vec<(usize, usize)> = Vec::new();
        for (position, (&slot, &expert)) in slots.iter().zip(&experts).enumerate() {
            let expert = expert as usize;
            match positions.get_mut(slot as usize) {
                Some(free) if *free == u32::MAX => *free = position as u32,
                Some(_) => candle::bail!("moe_gemm: slot {slot} occurs twice"),
                None => candle::bail!("moe_gemm: there is no slot {slot} of {}", sizes.slots),
            }
            if expert >= sizes.experts {
                candle::bail!("moe_gemm: there is no expert {expert} of {}", sizes.experts)
            }
            match ends.last_mut() {
                Some((last, end)) if *last == expert => *end = position + 1,
                _ => ends.push((expert, position + 1)),
            }
        }
        Ok(Self {
            slots,
            ends,
            positions,
        })
    }

    /// `product(expert, its rows of the input)` for every run, in the slots' own order.
    fn products(
        &self,
        input: &Tensor,
        sizes: &Sizes,
        product: impl Fn(usize, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut results = Vec::with_capacity(self.ends.len());
        let mut start = 0;
        for &(expert, end) in &self.ends {
            let rows: Vec<u32> = self.slots[start..end]
                .iter()
                .map(|slot| slot / sizes.per_row as u32)
                .collect();
            let rows = Tensor::from_vec(rows, end - start, input.device())?;
            results.push(product(expert, &input.index_select(&rows, 0)?)?);
            start = end;
        }
        if results.is_empty() {
            return Tensor::zeros((0, sizes.n), input.dtype(), input.device());
        }
        let positions = Tensor::from_slice(&self.positions, sizes.slots, input.device())?;
        Tensor::cat(&results, 0)?.index_select(&positions, 0)
    }
}
