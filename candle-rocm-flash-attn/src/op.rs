//! The operation behind the functions.

use candle::{CpuStorage, CustomOp3, DType, Layout, Result, RocmStorage, Shape, Storage, Tensor};
use candle_rocm::ops::attention::{self, attention, Attention, Dropout, Lengths};
use candle_rocm::{Buffer, View};
use std::ops::Deref;
use std::sync::OnceLock;

const OP: &str = "flash-attn";

/// Attention with everything but queries, keys and values.
pub(crate) struct FlashAttn {
    pub scale: f32,
    pub slopes: Option<Tensor>,
    pub left: Option<usize>,
    pub right: Option<usize>,
    pub softcap: Option<f32>,
    pub sequences: Sequences,
    pub dropout: Option<Dropout>,
    /// Whether a backward pass may follow, for which the forward pass leaves `log_sum_exp`.
    pub is_tracked: bool,
    pub log_sum_exp: OnceLock<Buffer>,
}

/// How rows and keys belong together.
pub(crate) enum Sequences {
    Fixed,
    Packed {
        seqlens_q: Tensor,
        seqlens_k: Tensor,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
        paged: Option<Paged>,
    },
}

/// Keys and values in blocks.
pub(crate) struct Paged {
    pub table: Tensor,
    pub seen_ranges: Option<Tensor>,
}

/// The keys that a row at position `p` sees: from `p - left` to `p + right`; `None` is without limit.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub left: Option<usize>,
    pub right: Option<usize>,
}

impl FlashAttn {
    pub fn packed(
        mut self,
        seqlens_q: &Tensor,
        seqlens_k: &Tensor,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
    ) -> Self {
        self.sequences = Sequences::Packed {
            seqlens_q: seqlens_q.clone(),
            seqlens_k: seqlens_k.clone(),
            max_seqlen_q,
            max_seqlen_k,
            paged: None,
        };
        self
    }

    pub fn paged(
        mut self,
        seqlens_q: &Tensor,
        seqlens_k: &Tensor,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
        table: &Tensor,
        seen_ranges: Option<&Tensor>,
    ) -> Self {
        self.sequences = Sequences::Packed {
            seqlens_q: seqlens_q.clone(),
            seqlens_k: seqlens_k.clone(),
            max_seqlen_q,
            max_seqlen_k,
            paged: Some(Paged {
                table: table.clone(),
                seen_ranges: seen_ranges.cloned(),
            }),
        };
        self
    }

    /// Applies the operation.
    pub fn apply(mut self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        if self.slopes.as_ref().is_some_and(Tensor::track_op) {
            candle::bail!("flash-attn has no gradient of ALiBi slopes: detach them")
        }
        self.is_tracked = !self.is_paged() && [q, k, v].iter().any(|t| t.track_op());
        q.apply_op3(k, v, self)
    }

    pub fn with_dropout(mut self, probability: f32, seed: u64) -> Result<Self> {
        if !(0.0..1.0).contains(&probability) {
            candle::bail!(
                "flash-attn: the probability of dropout must be at least 0 and less than 1, not {probability}"
            )
        }
        // Without dropout there is nothing to compute for it.
        let dropout = Dropout { probability, seed };
        self.dropout = (dropout.threshold() != 0).then_some(dropout);
        Ok(self)
    }

    pub fn is_paged(&self) -> bool {
        matches!(self.sequences, Sequences::Packed { paged: Some(_), .. })
    }

    /// The window as candle-flash-attn has it: a limit beyond the (longest) sequence of keys is none, and where only
    /// the left one is given the right one is that length, which matters where there are more than twice as many rows
    /// as keys.
    pub fn window(&self, k: &Layout) -> Window {
        let keys = match self.sequences {
            Sequences::Fixed => k.dims().get(1).copied().unwrap_or(0),
            Sequences::Packed { max_seqlen_k, .. } => max_seqlen_k,
        };
        let left = self.left.filter(|size| *size <= keys);
        let right = self.right.filter(|size| *size <= keys);
        Window {
            left,
            right: right.or(left.map(|_| keys)),
        }
    }

    /// What the device layer does not check, because it can do more.
    pub fn check(
        &self,
        q: (DType, &Layout),
        k: (DType, &Layout),
        v: (DType, &Layout),
    ) -> Result<()> {
        if !matches!(q.0, DType::F16 | DType::BF16 | DType::F32) {
            candle::bail!("flash-attn is for f16, bf16 and f32, not {:?}", q.0)
        }
        if k.0 != q.0 || v.0 != q.0 {
            candle::bail!(
                "flash-attn: q, k and v must be of one dtype, not {:?}, {:?} and {:?}",
                q.0,
                k.0,
                v.0
            )
        }
        if k.1.shape() != v.1.shape() {
            candle::bail!(
                "flash-attn: k {:?} and v {:?} must have one shape",
                k.1.shape(),
                v.1.shape()
            )
        }
        let size = q.1.dims().last().copied().unwrap_or(0);
        if size == 0 || size % 8 != 0 || size > 512 {
            candle::bail!("flash-attn: the head size must be a multiple of 8 up to 512, not {size}; pad the last dimension with zeros")
        }
        Ok(())
    }
}

/// A tensor held while the device layer looks at it.
struct Held<'a> {
    storage: Box<dyn Deref<Target = Storage> + 'a>,
    layout: &'a Layout,
}

impl<'a> Held<'a> {
    fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Held {
            storage: Box::new(storage),
            layout,
        }
    }

    fn of(tensor: Option<&'a Tensor>) -> Option<Self> {
        tensor.map(Held::new)
    }

    fn view(&self, what: &'static str) -> Result<View<'_>> {
        match &**self.storage {
            Storage::Rocm(storage) => storage.view(self.layout, "flash-attn"),
            _ => candle::bail!("flash-attn: {what} must be on the ROCm device of q"),
        }
    }
}

fn view<'a>(held: &'a Option<Held>, what: &'static str) -> Result<Option<View<'a>>> {
    held.as_ref().map(|held| held.view(what)).transpose()
}

impl CustomOp3 for FlashAttn {
    fn name(&self) -> &'static str {
        "flash-attn"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        crate::cpu::attend(self, (q, q_l), (k, k_l), (v, v_l))
    }

    fn rocm_fwd(
        &self,
        q: &RocmStorage,
        q_l: &Layout,
        k: &RocmStorage,
        k_l: &Layout,
        v: &RocmStorage,
        v_l: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        use candle::backend::BackendStorage;
        let done = self.with_problem((q, q_l), (k, k_l), (v, v_l), |problem| {
            Ok(attention(q.buffer().device(), problem)?)
        })?;
        if let Some(log_sum_exp) = done.log_sum_exp {
            // It is computed once: an operation is applied to its operands alone.
            let _ = self.log_sum_exp.set(log_sum_exp);
        }
        let shape = q_l.shape().clone();
        let count = shape.elem_count();
        Ok((q.with_buffer(done.out, q.dtype(), count), shape))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        result: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        if self.is_paged() {
            return Err(candle::Error::BackwardNotSupported {
                op: "flash-attn with a paged cache",
            });
        }
        let [dq, dk, dv] = crate::backward::gradients(self, [q, k, v], result, grad)?;
        let wanted = |x: &Tensor, gradient: Tensor| x.track_op().then_some(gradient);
        Ok((wanted(q, dq), wanted(k, dk), wanted(v, dv)))
    }
}

/// A tensor as custom operations receive it.
pub(crate) type Operand<'a> = (&'a RocmStorage, &'a Layout);

impl FlashAttn {
    /// Calls `f` with the problem of the device layer.
    pub fn with_problem<R>(
        &self,
        q: Operand,
        k: Operand,
        v: Operand,
        f: impl FnOnce(&Attention) -> Result<R>,
    ) -> Result<R> {
        use candle::backend::BackendStorage;
        let ((q, q_l), (k, k_l), (v, v_l)) = (q, k, v);
        self.check((q.dtype(), q_l), (k.dtype(), k_l), (v.dtype(), v_l))?;
        let (packed, paged) = match &self.sequences {
            Sequences::Fixed => (None, None),
            Sequences::Packed {
                seqlens_q,
                seqlens_k,
                max_seqlen_q,
                max_seqlen_k,
                paged,
            } => (
                Some((
                    Held::new(seqlens_q),
                    Held::new(seqlens_k),
                    *max_seqlen_q,
                    *max_seqlen_k,
                )),
                paged.as_ref(),
            ),
        };
        let slopes = Held::of(self.slopes.as_ref());
        let table = Held::of(paged.map(|paged| &paged.table));
        let prefix = Held::of(paged.and_then(|paged| paged.seen_ranges.as_ref()));
        let lengths = match &packed {
            None => Lengths::Fixed,
            Some((rows, keys, max_rows, max_keys)) => {
                let (cu_rows, cu_keys) = (rows.view("seqlens_q")?, keys.view("seqlens_k")?);
                let (max_rows, max_keys) = (*max_rows, *max_keys);
                match view(&table, "table")? {
                    None => Lengths::Packed {
                        cu_rows,
                        cu_keys,
                        max_rows,
                        max_keys,
                    },
                    Some(blocks) => Lengths::Paged {
                        cu_rows,
                        cu_keys,
                        max_rows,
                        max_keys,
                        blocks,
                    },
                }
            }
        };
        let Window { left, right } = self.window(k_l);
        let problem = Attention {
            lengths,
            window: attention::Window { left, right },
            softcap: self.softcap,
            alibi: view(&slopes, "alibi_slopes")?,
            prefix: view(&prefix, "seen_ranges")?,
            dropout: self.dropout,
            log_sum_exp: self.is_tracked,
            ..Attention::new(
                q.view(q_l, OP)?,
                k.view(k_l, OP)?,
                v.view(v_l, OP)?,
                self.scale,
            )
        };
        f(&problem)
    }
}
