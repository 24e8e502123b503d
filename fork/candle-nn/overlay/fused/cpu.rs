//! Layers of f32 on the CPU. Each function gives `None` where plain operations are to be used: other devices and dtypes,
//! operands that take part in a graph or do not lie as the loops want them, shapes that do not fit together (plain
//! operations say how), and, for products, processors that have no instructions for them.

use candle::utils::barrier_pool;
use candle::{CpuStorage, DType, Device, Layout, Result, Storage, Tensor};
use cpu_kernels::conv::Conv;
use cpu_kernels::gate::{self, Rows};

use crate::{Activation, Conv2d, Conv2dConfig};

fn fits(tensors: &[&Tensor]) -> bool {
    tensors
        .iter()
        .all(|t| t.device().is_cpu() && t.dtype() == DType::F32 && !t.track_op())
}

/// Calls `f` with the elements from the first one of `tensor` on.
fn with_elements<R>(tensor: &Tensor, f: impl FnOnce(&[f32], &Layout) -> R) -> Option<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(CpuStorage::F32(all)) => Some(f(all.get(layout.start_offset()..)?, layout)),
        _ => None,
    }
}

/// Calls `f` with the elements of each tensor; none if one is not contiguous.
fn with_all<const N: usize, R>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> R,
) -> Option<R> {
    let held = tensors.map(Tensor::storage_and_layout);
    let mut slices = [[].as_slice(); N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&held) {
        let Storage::Cpu(CpuStorage::F32(all)) = &**storage else {
            return None;
        };
        let (first, end) = layout.contiguous_offsets()?;
        *slice = all.get(first..end)?;
    }
    Some(f(slices))
}

fn tensor(elements: Vec<f32>, shape: impl Into<candle::Shape>) -> Result<Tensor> {
    Tensor::from_vec(elements, shape.into(), &Device::Cpu)
}

pub(super) fn group_norm(
    xs: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: usize,
    eps: f64,
    silu: bool,
) -> Result<Option<Tensor>> {
    let channels = xs.dim(1)?;
    let each = [channels];
    let shapes_fit = xs.rank() > 2
        && groups > 0
        && channels.is_multiple_of(groups)
        && weight.dims() == each
        && bias.dims() == each
        && xs.elem_count() > 0;
    if !shapes_fit || !fits(&[xs, weight, bias]) {
        return Ok(None);
    }
    let norm = cpu_kernels::group_norm::GroupNorm {
        channels,
        groups,
        pixels: xs.elem_count() / channels / xs.dim(0)?,
        eps,
        silu,
    };
    let xs = xs.contiguous()?;
    let out = with_all([&xs, weight, bias], |[x, weight, bias]| {
        cpu_kernels::group_norm::group_norm(barrier_pool(), &norm, x, weight, bias)
    });
    out.map(|out| tensor(out, xs.shape())).transpose()
}

pub(super) fn transposed(xs: &Tensor) -> Result<Option<Tensor>> {
    let (Some((&columns, outer)), true) = (xs.dims().split_last(), fits(&[xs])) else {
        return Ok(None);
    };
    let Some(&rows) = outer.last() else {
        return Ok(None);
    };
    let out = with_all([xs], |[x]| {
        cpu_kernels::transpose::transposed(barrier_pool(), x, (rows, columns))
    });
    let mut shape = xs.dims().to_vec();
    let last = shape.len() - 1;
    shape.swap(last - 1, last);
    out.map(|out| tensor(out, shape)).transpose()
}

/// The rows that `layout` consists of, if each is contiguous and they are equally far apart: (width, stride).
fn rows(layout: &Layout) -> Option<(usize, usize)> {
    let (dims, strides) = (layout.dims(), layout.stride());
    let (&width, outer) = dims.split_last()?;
    let (&1, outer_strides) = strides.split_last()? else {
        return None;
    };
    let stride = outer_strides.last().copied().unwrap_or(width);
    let mut next = stride;
    for (dim, own) in outer.iter().zip(outer_strides).rev() {
        if *own != next {
            return None;
        }
        next = own * dim;
    }
    Some((width, stride))
}

pub(super) fn gate_mul(act: Activation, gate: &Tensor, up: &Tensor) -> Result<Option<Tensor>> {
    let act = match act {
        Activation::Silu | Activation::Swish => gate::Activation::Silu,
        Activation::Gelu => gate::Activation::Gelu,
        Activation::NewGelu | Activation::GeluPytorchTanh => gate::Activation::GeluTanh,
        _ => return Ok(None),
    };
    if gate.shape() != up.shape() || gate.elem_count() == 0 || !fits(&[gate, up]) {
        return Ok(None);
    }
    let out = with_elements(gate, |g, g_l| {
        with_elements(up, |u, u_l| {
            let ((width, g_stride), (_, u_stride)) = (rows(g_l)?, rows(u_l)?);
            let count = g_l.shape().elem_count() / width;
            let of = |elements, stride| Rows { elements, stride };
            let (gate, up) = (of(g, g_stride), of(u, u_stride));
            Some(gate::gate(barrier_pool(), act, gate, up, (count, width)))
        })
    });
    let out = out.flatten().flatten();
    out.map(|out| tensor(out, gate.shape())).transpose()
}

/// The forward pass of [`Conv2d`].
pub(crate) fn conv2d(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: &Conv2dConfig,
) -> Result<Option<Tensor>> {
    let Some((conv, xs, bias)) = convolution(xs, weight, bias, config)? else {
        return Ok(None);
    };
    let (height, width) = conv.out_size();
    let shape = (conv.batch, conv.outputs, height, width);
    let out = with_all([&xs, weight, bias.unwrap_or(weight)], |[x, weight, b]| {
        let bias = bias.is_some().then_some(b);
        cpu_kernels::conv::conv2d(barrier_pool(), &conv, x, weight, bias)
    });
    out.map(|out| tensor(out, shape)).transpose()
}

pub(super) fn conv2d_of_doubled(xs: &Tensor, layer: &Conv2d) -> Result<Option<Tensor>> {
    let (weight, config) = (layer.weight(), layer.config());
    let Some((conv, xs, bias)) = convolution(xs, weight, layer.bias(), config)? else {
        return Ok(None);
    };
    if conv.kernel != (3, 3) || (conv.stride, conv.padding, conv.dilation) != (1, 1, 1) {
        return Ok(None);
    }
    let (height, width) = conv.size;
    let shape = (conv.batch, conv.outputs, 2 * height, 2 * width);
    let out = with_all([&xs, weight, bias.unwrap_or(weight)], |[x, weight, b]| {
        let bias = bias.is_some().then_some(b);
        cpu_kernels::doubled::conv2d_of_doubled(barrier_pool(), &conv, x, weight, bias)
    });
    out.map(|out| tensor(out, shape)).transpose()
}

type Convolution<'a> = (Conv, Tensor, Option<&'a Tensor>);

/// The sizes of a convolution and its contiguous operand.
fn convolution<'a>(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&'a Tensor>,
    config: &Conv2dConfig,
) -> Result<Option<Convolution<'a>>> {
    let (&[batch, inputs, height, width], &[outputs, depth, k_h, k_w]) = (xs.dims(), weight.dims())
    else {
        return Ok(None);
    };
    let conv = Conv {
        batch,
        inputs,
        size: (height, width),
        outputs,
        kernel: (k_h, k_w),
        stride: config.stride,
        padding: config.padding,
        dilation: config.dilation,
    };
    let sizes_fit = conv.is_ordinary()
        && config.groups == 1
        && inputs == depth
        && bias.is_none_or(|bias| bias.dims() == [outputs])
        && [k_h, k_w, conv.stride, conv.dilation]
            .iter()
            .all(|x| *x > 0)
        && xs.elem_count() > 0
        && weight.elem_count() > 0;
    // The kernel fits into the picture: plain operations say it where it does not.
    let reach = |k: usize| conv.dilation.checked_mul(k - 1);
    let around = conv.padding.checked_mul(2);
    let room = |size: usize| around.and_then(|around| around.checked_add(size));
    let fits_in =
        |size: usize, k: usize| matches!((reach(k), room(size)), (Some(a), Some(b)) if a < b);
    if !sizes_fit
        || !fits_in(height, k_h)
        || !fits_in(width, k_w)
        || !fits(&[xs, weight, bias.unwrap_or(weight)])
        || !cpu_kernels::has_products()
    {
        return Ok(None);
    }
    Ok(Some((conv, xs.contiguous()?, bias)))
}

/// The forward pass of [`crate::Linear`].
pub(crate) fn linear(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let &[outputs, inputs] = weight.dims() else {
        return Ok(None);
    };
    let sizes_fit = xs.dims().last() == Some(&inputs)
        && bias.is_none_or(|bias| bias.dims() == [outputs])
        && xs.elem_count() > 0
        && outputs > 0;
    // For a row or two packing the weights would cost more than the product.
    let pays = xs.elem_count() / inputs.max(1) >= 8;
    if !sizes_fit
        || !pays
        || !fits(&[xs, weight, bias.unwrap_or(weight)])
        || !cpu_kernels::has_products()
    {
        return Ok(None);
    }
    let mut shape = xs.dims().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    let out = with_all([xs, weight, bias.unwrap_or(weight)], |[x, weight, b]| {
        let bias = bias.is_some().then_some(b);
        cpu_kernels::linear::linear(barrier_pool(), x, weight, bias, inputs)
    });
    out.map(|out| tensor(out, shape)).transpose()
}
