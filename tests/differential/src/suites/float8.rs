//! `candle_nn::float8` on both devices: products against f64, quantization against what it promises.

use crate::{error_of, name, nmse, tensor, to_f64, widen, Arrangement, Context, Report, Suite};
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_nn::float8::{quantize, scaled_matmul, Scaling, BLOCK};
use candle_nn::{Init, VarBuilder};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("scaled-matmul", products_with_scales),
    Suite::listed("quantize-f8", quantization),
    Suite::unlisted("scaled-matmul-refusals", what_does_not_fit_is_refused),
    Suite::unlisted("float8-gradients", there_are_no_gradients),
    Suite::unlisted("float8-files", files_keep_their_dtype),
];

const F8: DType = DType::F8E4M3;

/// Scales of both operands.
const SCALINGS: [(Scaling, Scaling); 5] = [
    (Scaling::Tensor, Scaling::Tensor),
    (Scaling::Row, Scaling::Row),
    (Scaling::RowBlock, Scaling::Square),
    (Scaling::Row, Scaling::Tensor),
    (Scaling::Tensor, Scaling::Square),
];

/// One rounding of the result.
fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-11,
        DType::F16 => 1e-6,
        DType::BF16 => 1e-5,
        _ => 2e-3,
    }
}

/// Scales for `[.., rows, columns]`, of every magnitude that there is in models.
fn scales(device: &Device, dims: &[usize], scaling: Scaling, seed: u64) -> Result<Tensor> {
    let [batch @ .., rows, columns] = dims else {
        candle_core::bail!("no matrix")
    };
    let (rows, columns) = (*rows, *columns);
    let last: &[usize] = match scaling {
        Scaling::Tensor => &[],
        Scaling::Row => &[rows, 1],
        Scaling::RowBlock => &[rows, columns.div_ceil(BLOCK)],
        Scaling::Square => &[rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)],
    };
    let dims = match scaling {
        Scaling::Tensor => Vec::new(),
        _ => [batch, last].concat(),
    };
    let dense = Arrangement::Contiguous;
    tensor(
        device,
        DType::F32,
        &[&[1], &dims[..]].concat(),
        dense,
        seed,
        (0.01, 3.),
    )?
    .reshape(dims)
}

/// What `[.., rows, columns]` stand for, in f64.
fn dequantized(x: &Tensor, scales: &Tensor) -> Result<Tensor> {
    let x = widen(&x.to_device(&Device::Cpu)?)?;
    let scales = widen(&scales.to_device(&Device::Cpu)?)?;
    if scales.rank() == 0 {
        return x.broadcast_mul(&scales);
    }
    let spread = |scales: Tensor, dim: D, length: usize| -> Result<Tensor> {
        let of = scales.dim(dim)?;
        if of == 1 || of == length {
            return Ok(scales);
        }
        let ids: Vec<u32> = (0..length).map(|i| (i / BLOCK) as u32).collect();
        let ids = Tensor::new(ids, &Device::Cpu)?;
        let dim = scales.rank() - if matches!(dim, D::Minus1) { 1 } else { 2 };
        scales.contiguous()?.index_select(&ids, dim)
    };
    let scales = spread(scales, D::Minus1, x.dim(D::Minus1)?)?;
    let scales = spread(scales, D::Minus2, x.dim(D::Minus2)?)?;
    x.broadcast_mul(&scales)
}

fn products_with_scales(context: &Context, report: &mut Report) -> Result<()> {
    use Arrangement::{Contiguous, Narrowed, Transposed};
    // Left, rows of the right one, and how they lie.
    let shapes: [(&[usize], &[usize], Arrangement); 6] = [
        (&[3, 300], &[130, 300], Narrowed),
        (&[64, 256], &[144, 256], Contiguous),
        (&[2, 5, 48], &[17, 48], Contiguous),
        (&[1, 16], &[1, 16], Contiguous),
        (&[2, 33, 129], &[2, 7, 129], Narrowed),
        (&[70, 140], &[9, 140], Transposed),
    ];
    for device in [context.device.clone(), Device::Cpu] {
        for &(left, right, arrangement) in context.first(2, &shapes) {
            for (of_a, of_b) in SCALINGS {
                let a = tensor(&device, F8, left, arrangement, 1, (-4., 4.))?;
                let b = tensor(&device, F8, right, arrangement, 2, (-4., 4.))?;
                let scale_a = scales(&device, left, of_a, 3)?;
                let scale_b = scales(&device, right, of_b, 4)?;
                let n = b.dim(D::Minus2)?;
                let exact = dequantized(&a, &scale_a)?.broadcast_matmul(
                    &dequantized(&b, &scale_b)?.transpose(D::Minus2, D::Minus1)?,
                )?;
                let b = b.transpose(D::Minus2, D::Minus1)?;
                let scale_b = match of_b {
                    Scaling::Tensor => scale_b,
                    _ => scale_b.transpose(D::Minus2, D::Minus1)?,
                };
                for to in [DType::F32, DType::F16, DType::BF16, F8] {
                    // A bias of the result's dtype, of another, or none.
                    for of_bias in [None, Some(to), Some(DType::F32)] {
                        let bias = of_bias
                            .filter(|dtype| *dtype != F8)
                            .map(|dtype| tensor(&device, dtype, &[n], Contiguous, 5, (-9., 9.)))
                            .transpose()?;
                        let want = match &bias {
                            Some(bias) => {
                                exact.broadcast_add(&widen(&bias.to_device(&Device::Cpu)?)?)?
                            }
                            None => exact.clone(),
                        };
                        report.compare(
                            "scaled_matmul",
                            name(to),
                            &format!(
                                "{left:?} {of_a:?} x {right:?} {of_b:?}, {arrangement:?}, bias {of_bias:?} on {:?}",
                                device.location()
                            ),
                            limit(to),
                            scaled_matmul(&a, &b, &scale_a, &scale_b, bias.as_ref(), to),
                            want.to_dtype(to),
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

fn quantization(context: &Context, report: &mut Report) -> Result<()> {
    use Scaling::{Row, RowBlock, Square};
    for device in [context.device.clone(), Device::Cpu] {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            for shape in [&[3, 300][..], &[2, 130, 129], &[1, 128]] {
                for &arrangement in context.arrangements() {
                    let x = tensor(&device, dtype, shape, arrangement, 1, (-3., 3.))?;
                    for scaling in [Scaling::Tensor, Row, RowBlock, Square] {
                        let what = format!(
                            "{scaling:?} {shape:?} {arrangement:?} on {:?}",
                            device.location()
                        );
                        let (numbers, scales) = quantize(&x, scaling)?;
                        // Four bits: at most 1 / 16 of each number is lost, a third of its square on average.
                        let again = dequantized(&numbers, &scales);
                        let wide = widen(&x.to_device(&Device::Cpu)?);
                        report.compare("float8::quantize", name(dtype), &what, 1.5e-3, again, wide);
                        let largest = to_f64(&numbers.to_dtype(DType::F32)?.abs()?.max_all()?)?;
                        ensure_eq!(largest, [448.], "{what}");
                        let zeros = quantize(&x.zeros_like()?, scaling)?;
                        ensure!(to_f64(&zeros.0)?.iter().all(|v| *v == 0.), "{what}: zeros");
                        ensure!(to_f64(&zeros.1)?.iter().all(|v| *v > 0.), "{what}: zeros");
                    }
                }
            }
        }
        // Of no rows, and without columns.
        for shape in [[0, 5], [3, 0]] {
            let nothing = Tensor::zeros(&shape, DType::F32, &device)?;
            for scaling in [Scaling::Tensor, Row, RowBlock, Square] {
                let (numbers, _) = quantize(&nothing, scaling)?;
                ensure_eq!((numbers.dims(), numbers.dtype()), (&shape[..], F8));
            }
        }
    }
    Ok(())
}

fn what_does_not_fit_is_refused(context: &Context, _: &mut Report) -> Result<()> {
    for device in [context.device.clone(), Device::Cpu] {
        let f8 = |dims: &[usize]| Tensor::ones(dims, F8, &device);
        let f32 = |dims: &[usize]| Tensor::ones(dims, DType::F32, &device);
        let (a, b, one) = (f8(&[3, 300])?, f8(&[300, 5])?, f32(&[])?);
        let plain = |a: &Tensor, b: &Tensor, scale_a: &Tensor, scale_b: &Tensor| {
            let got = scaled_matmul(a, b, scale_a, scale_b, None, DType::F32);
            error_of(got, "an operand that does not fit")
        };
        ensure!(plain(&f32(&[3, 300])?, &b, &one, &one)?.contains("F32"));
        ensure!(plain(&a, &f8(&[5, 300])?, &one, &one)?.contains("[5, 300]"));
        ensure!(plain(&a, &f8(&[2, 300, 5])?, &one, &one)?.contains("[2, 300, 5]"));
        ensure!(plain(&a, &b, &one.to_dtype(DType::F16)?, &one)?.contains("scale_a is F16"));
        ensure!(plain(&a, &b, &f32(&[3])?, &one)?.contains("scale_a is [3]"));
        ensure!(plain(&a, &b, &one, &f32(&[5, 1])?)?.contains("scale_b is [5, 1]"));
        ensure!(plain(&a, &b, &one, &f32(&[1, 3])?)?.contains("[1, 5] for rows"));
        let with = |bias: &Tensor, to| {
            let got = scaled_matmul(&a, &b, &one, &one, Some(bias), to);
            error_of(got, "a bias or result that does not fit")
        };
        ensure!(with(&f32(&[4])?, DType::F32)?.contains("bias"));
        ensure!(with(&f32(&[5])?, DType::F64)?.contains("F64"));
        let ids = Tensor::ones((2, 2), DType::U32, &device)?;
        ensure!(error_of(quantize(&ids, Scaling::Row), "integers")?.contains("U32"));
        let row = Tensor::ones(4, DType::F32, &device)?;
        ensure!(error_of(quantize(&row, Scaling::Row), "no rows")?.contains("[4]"));
        ensure_eq!(quantize(&row, Scaling::Tensor)?.0.dims(), [4]);
    }
    Ok(())
}

fn there_are_no_gradients(context: &Context, _: &mut Report) -> Result<()> {
    for device in [context.device.clone(), Device::Cpu] {
        let x = Var::from_tensor(&Tensor::ones((3, 16), DType::F32, &device)?)?;
        let (numbers, scale) = quantize(x.as_tensor(), Scaling::Row)?;
        let gradient = scale.sum_all()?.backward();
        ensure!(error_of(gradient, "a gradient")?.contains("quantize to f8e4m3"));
        let one = Tensor::ones((), DType::F32, &device)?;
        let plain = numbers.detach();
        let bias = Var::from_tensor(&Tensor::ones(3, DType::F32, &device)?)?;
        let bias = Some(bias.as_tensor());
        let product = scaled_matmul(&plain, &plain.t()?, &one, &one, bias, DType::F32)?;
        ensure_eq!(to_f64(&product)?, [16. * 448. * 448. + 1.; 9]);
        let gradient = product.sum_all()?.backward();
        ensure!(error_of(gradient, "a gradient")?.contains("scaled_matmul"));
    }
    Ok(())
}

/// A file of FP8 weights by way of `VarBuilder`: the dtype is kept where it is asked for, to the bit, and converted
/// where another is.
fn files_keep_their_dtype(context: &Context, _: &mut Report) -> Result<()> {
    let bits: Vec<u8> = (0..=255).collect();
    let weight = Tensor::from_raw_buffer(&bits, F8, &[16, 16], &Device::Cpu)?;
    let scale = Tensor::new(&[[0.5f32]], &Device::Cpu)?;
    let place = format!("candle-rocm-float8-{}.safetensors", std::process::id());
    let place = std::env::temp_dir().join(place);
    let tensors = [("layer.weight", weight), ("layer.weight_scale_inv", scale)];
    let tensors = tensors.map(|(name, tensor)| (name.to_string(), tensor));
    candle_core::safetensors::save(&tensors.into_iter().collect(), &place)?;
    let file = std::fs::read(&place)?;
    std::fs::remove_file(&place)?;
    let (kept, in_bf16, scale) = load(&context.device, file)?;
    ensure_eq!((kept.dtype(), in_bf16.dtype()), (F8, DType::BF16));
    ensure!(kept.device().same_device(&context.device));
    let want = Tensor::from_raw_buffer(&bits, F8, &[16, 16], &Device::Cpu)?;
    ensure_eq!(nmse(&to_f64(&kept)?, &to_f64(&want)?), Ok(0.));
    let known = kept.narrow(0, 0, 7)?;
    ensure_eq!(to_f64(&known)?, to_f64(&in_bf16.narrow(0, 0, 7)?)?);
    let eye = Tensor::eye(16, DType::F32, &context.device)?.to_dtype(F8)?;
    let one = Tensor::ones((), DType::F32, &context.device)?;
    let half = scaled_matmul(&known.contiguous()?, &eye, &one, &scale, None, DType::F32)?;
    let doubled = (half * 2.)?;
    ensure_eq!(to_f64(&doubled)?, to_f64(&known)?);
    Ok(())
}

fn load(device: &Device, file: Vec<u8>) -> Result<(Tensor, Tensor, Tensor)> {
    let builder = VarBuilder::from_buffered_safetensors(file, F8, device)?;
    let layer = builder.pp("layer");
    let weight = layer.get((16, 16), "weight")?;
    let none = Init::default();
    let in_bf16 = layer.get_with_hints_dtype((16, 16), "weight", none, DType::BF16)?;
    let scale = layer.get_with_hints_dtype((1, 1), "weight_scale_inv", none, DType::F32)?;
    Ok((weight, in_bf16, scale))
}
