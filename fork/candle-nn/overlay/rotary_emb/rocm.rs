//! Rotary embeddings on AMD GPUs.

use candle::backend::BackendStorage;
use candle::rocm_backend::candle_rocm::{self, ops::rope, Buffer, Device, View};
use candle::{Layout, Result, RocmStorage, Shape};

use super::{RotaryEmb, RotaryEmbI, RotaryEmbThd};

type Rope = fn(&Device, &View, &View, &View) -> candle_rocm::Result<Buffer>;

/// A tensor as custom operations receive it.
type Operand<'a> = (&'a RocmStorage, &'a Layout);

fn rotate(
    rope: Rope,
    op: &'static str,
    (x, x_l): Operand,
    (cos, cos_l): Operand,
    (sin, sin_l): Operand,
) -> Result<(RocmStorage, Shape)> {
    let (view, cos, sin) = (x.view(x_l, op)?, cos.view(cos_l, op)?, sin.view(sin_l, op)?);
    let buffer = rope(x.buffer().device(), &view, &cos, &sin)?;
    let shape = x_l.shape().clone();
    Ok((x.with_buffer(buffer, x.dtype(), shape.elem_count()), shape))
}

macro_rules! rotary {
    ($function:ident, $type:ident, $rope:path, $op:literal) => {
        pub(super) fn $function(
            _: &$type,
            x: &RocmStorage,
            x_l: &Layout,
            cos: &RocmStorage,
            cos_l: &Layout,
            sin: &RocmStorage,
            sin_l: &Layout,
        ) -> Result<(RocmStorage, Shape)> {
            rotate($rope, $op, (x, x_l), (cos, cos_l), (sin, sin_l))
        }
    };
}

rotary!(rotary_emb, RotaryEmb, rope::rope, "rope");
rotary!(rotary_emb_i, RotaryEmbI, rope::rope_i, "rope-i");
rotary!(rotary_emb_thd, RotaryEmbThd, rope::rope_thd, "rope-thd");
