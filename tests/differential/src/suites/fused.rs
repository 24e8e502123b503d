//! `candle_nn::fused` and `candle_nn::moe` on both devices against their plain forms in f64.

use crate::{error_of, name, tensor, widen, Arrangement, Context, Report, Suite};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_nn::{fused, moe, Activation, Module};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("fused-norms", norms_of_sums),
    Suite::listed("group-norms", group_norms),
    Suite::listed("gated", gated_activations),
    Suite::listed("epilogues", epilogues),
    Suite::unlisted("fused-gradients-flow", gradients_flow_through),
    Suite::unlisted("gate-mul-refusals", odd_halves_are_refused),
    Suite::listed("moe", experts),
    Suite::listed("moe-gguf", quantized_experts),
    Suite::on_cpu("moe-refusals", slots_that_do_not_fit_are_refused),
];

/// The dtypes that have kernels, and f64, which has none and takes the plain way.
const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const ACTIVATIONS: [Activation; 6] = [
    Activation::Silu,
    Activation::Swish,
    Activation::Gelu,
    Activation::GeluPytorchTanh,
    Activation::Relu,
    Activation::Sigmoid, // no kernel
];

/// The CPU rounds after every step, the kernels once.
fn limit(device: &Device, dtype: DType) -> f64 {
    match dtype {
        DType::F32 | DType::F64 => 1e-7,
        _ if device.is_rocm() => 1e-5,
        DType::F16 => 1e-5,
        _ => 1e-4,
    }
}

fn norms_of_sums(context: &Context, report: &mut Report) -> Result<()> {
    for device in [context.device.clone(), Device::Cpu] {
        for dtype in DTYPES {
            let shapes = [
                ([3, 1, 33], Arrangement::Contiguous),
                ([2, 5, 64], Arrangement::Narrowed),
                ([2, 3, 1500], Arrangement::Contiguous),
                ([4, 2, 7], Arrangement::Transposed),
            ];
            for &(shape, arrangement) in context.first(2, &shapes) {
                let part = |d: &Device, shape: &[usize], arrangement, seed| {
                    tensor(d, dtype, shape, arrangement, seed, (-2., 2.))
                };
                let width = &shape[2..];
                let all = |d: &Device| -> Result<[Tensor; 4]> {
                    Ok([
                        part(d, &shape, arrangement, 1)?,
                        part(d, &shape, Arrangement::Contiguous, 2)?,
                        part(d, width, Arrangement::Narrowed, 3)?,
                        part(d, width, Arrangement::Contiguous, 4)?,
                    ])
                };
                let [x, residual, weight, bias] = all(&device)?;
                let weight = weight.force_contiguous()?;
                let [wide_x, wide_residual, wide_weight, wide_bias] =
                    all(&Device::Cpu)?.map(|t| widen(&t).expect("a float"));
                let want_sum = (&wide_x + &wide_residual)?.to_dtype(dtype)?;
                let sum64 = widen(&want_sum)?;
                let norm = |t: &Tensor| -> Result<Tensor> {
                    let scale = (t.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
                    t.broadcast_div(&scale)?.broadcast_mul(&wide_weight)
                };
                let centered = sum64.broadcast_sub(&sum64.mean_keepdim(D::Minus1)?)?;
                let what = format!("{shape:?} {arrangement:?} on {:?}", device.location());
                let limit = limit(&device, dtype);

                let (sum, normed) = fused::add_rms_norm(&x, &residual, &weight, 1e-5)?;
                report.compare(
                    "add_rms_norm",
                    name(dtype),
                    &format!("sum {what}"),
                    1e-7,
                    Ok(sum),
                    Ok(want_sum.clone()),
                );
                report.compare(
                    "add_rms_norm",
                    name(dtype),
                    &what,
                    limit,
                    Ok(normed),
                    norm(&sum64)?.to_dtype(dtype),
                );
                for bias in [Some(&bias), None] {
                    let (sum, normed) = fused::add_layer_norm(&x, &residual, &weight, bias, 1e-5)?;
                    let want = match bias {
                        Some(_) => norm(&centered)?.broadcast_add(&wide_bias)?,
                        None => norm(&centered)?,
                    };
                    let what = format!("{what} bias {}", bias.is_some());
                    report.compare(
                        "add_layer_norm",
                        name(dtype),
                        &format!("sum {what}"),
                        1e-7,
                        Ok(sum),
                        Ok(want_sum.clone()),
                    );
                    report.compare(
                        "add_layer_norm",
                        name(dtype),
                        &what,
                        limit,
                        Ok(normed),
                        want.to_dtype(dtype),
                    );
                }
            }
        }
    }
    Ok(())
}

/// Groups of one channel and of all, pictures of one pixel and of odd sizes, and groups so large that they are cut into
/// parts; means far from zero, for the variance.
fn group_norms(context: &Context, report: &mut Report) -> Result<()> {
    for device in [context.device.clone(), Device::Cpu] {
        for dtype in DTYPES {
            let shapes = [
                ([2, 6, 5, 7], 3, Arrangement::Contiguous),
                ([1, 8, 16, 16], 2, Arrangement::Narrowed),
                ([3, 4, 1, 1], 4, Arrangement::Contiguous),
                ([2, 32, 3, 3], 32, Arrangement::Transposed),
                ([1, 3, 1, 1031], 1, Arrangement::Contiguous),
                ([1, 5, 91, 81], 1, Arrangement::Contiguous),
                ([1, 16, 64, 41], 1, Arrangement::Contiguous),
            ];
            for &(shape, groups, arrangement) in context.first(2, &shapes) {
                let all = |d: &Device| -> Result<[Tensor; 3]> {
                    let channels = &shape[1..2];
                    Ok([
                        tensor(d, dtype, &shape, arrangement, 1, (1., 4.))?,
                        tensor(d, dtype, channels, Arrangement::Narrowed, 2, (-2., 2.))?,
                        tensor(d, dtype, channels, Arrangement::Contiguous, 3, (-2., 2.))?,
                    ])
                };
                let [x, weight, bias] = all(&device)?;
                let [wide_x, wide_weight, wide_bias] =
                    all(&Device::Cpu)?.map(|t| widen(&t).expect("a float"));
                let rows = wide_x.contiguous()?.reshape((shape[0], groups, ()))?;
                let centered = rows.broadcast_sub(&rows.mean_keepdim(2)?)?;
                let deviation = (centered.sqr()?.mean_keepdim(2)? + 1e-5)?.sqrt()?;
                let each = |t: &Tensor| t.reshape((1, shape[1], 1, 1));
                let want = centered
                    .broadcast_div(&deviation)?
                    .reshape(&shape)?
                    .broadcast_mul(&each(&wide_weight)?)?
                    .broadcast_add(&each(&wide_bias)?)?;
                let what = format!(
                    "{shape:?} {groups} {arrangement:?} on {:?}",
                    device.location()
                );
                let limit = limit(&device, dtype);
                report.compare(
                    "group_norm",
                    name(dtype),
                    &what,
                    limit,
                    fused::group_norm(&x, &weight, &bias, groups, 1e-5),
                    want.to_dtype(dtype),
                );
                report.compare(
                    "group_norm_silu",
                    name(dtype),
                    &what,
                    limit,
                    fused::group_norm_silu(&x, &weight, &bias, groups, 1e-5),
                    want.silu()?.to_dtype(dtype),
                );
            }
        }
        let [x, weight] =
            [&[1, 6, 2, 2][..], &[6]].map(|shape| Tensor::ones(shape, DType::F32, &device));
        let (x, weight) = (x?, weight?);
        ensure!(fused::group_norm(&x, &weight, &weight, 4, 1e-5).is_err());
        ensure!(fused::group_norm(&x, &weight, &weight.narrow(0, 0, 3)?, 3, 1e-5).is_err());
    }
    Ok(())
}

fn gated_activations(context: &Context, report: &mut Report) -> Result<()> {
    for device in [context.device.clone(), Device::Cpu] {
        for dtype in DTYPES {
            for act in ACTIVATIONS {
                for (n, arrangement) in [
                    (64, Arrangement::Contiguous),
                    (33, Arrangement::Narrowed),
                    (5, Arrangement::Transposed),
                ] {
                    let packed =
                        |d: &Device| tensor(d, dtype, &[3, 2, 2 * n], arrangement, 7, (-3., 3.));
                    let got = packed(&device).and_then(|t| fused::gate_mul_packed(act, &t));
                    let want = packed(&Device::Cpu).and_then(|t| {
                        let t = widen(&t)?;
                        (act.forward(&t.narrow(2, 0, n)?)? * t.narrow(2, n, n)?)?.to_dtype(dtype)
                    });
                    let what = format!("{act:?} {n} {arrangement:?} on {:?}", device.location());
                    // Without a kernel, every device rounds after every step.
                    let limit = match act {
                        Activation::Sigmoid => limit(&Device::Cpu, dtype),
                        _ => limit(&device, dtype),
                    };
                    report.compare("gate_mul", name(dtype), &what, limit, got, want);
                }
            }
        }
    }
    Ok(())
}

/// Norms and products as diffusion transformers have them, with what follows both shared by the tokens of a picture, and
/// residual layers of images, with a number for each channel.
fn epilogues(context: &Context, report: &mut Report) -> Result<()> {
    for device in [context.device.clone(), Device::Cpu] {
        for dtype in DTYPES {
            let (batch, tokens, width) = (2, 5, 40);
            let rows = [batch, tokens, width];
            let part = |d: &Device, shape: &[usize], arrangement, seed| {
                tensor(d, dtype, shape, arrangement, seed, (-2., 2.))
            };
            // Two of three parts that one layer gives; a bias for columns, and one for rows.
            let all = |d: &Device| -> Result<[Tensor; 6]> {
                let parts = part(d, &[batch, 1, 3 * width], Arrangement::Contiguous, 2)?;
                Ok([
                    part(d, &rows, Arrangement::Narrowed, 1)?,
                    parts.narrow(2, 0, width)?,
                    parts.narrow(2, 2 * width, width)?,
                    part(d, &rows, Arrangement::Contiguous, 3)?,
                    part(d, &[width], Arrangement::Contiguous, 4)?,
                    part(d, &[1, tokens, 1], Arrangement::Contiguous, 5)?,
                ])
            };
            let [x, scale, gate, residual, bias, numbers] = all(&device)?;
            let [wide_x, wide_scale, wide_gate, wide_residual, wide_bias, wide_numbers] =
                all(&Device::Cpu)?.map(|t| widen(&t).expect("a float"));
            let place = format!("on {:?}", device.location());
            // Sums may end near zero.
            let limit = 10. * limit(&device, dtype);

            let centered = wide_x.broadcast_sub(&wide_x.mean_keepdim(D::Minus1)?)?;
            let deviation = (centered.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?.sqrt()?;
            let scaled = centered
                .broadcast_div(&deviation)?
                .broadcast_mul(&(&wide_scale + 1.0)?)?;
            for shift in [None, Some((&gate, &wide_gate))] {
                let got = fused::modulated_norm(&x, &scale, shift.map(|(shift, _)| shift), 1e-6);
                let want = match shift {
                    Some((_, shift)) => scaled.broadcast_add(shift)?,
                    None => scaled.clone(),
                };
                let what = format!("shift {} {place}", shift.is_some());
                let want = want.to_dtype(dtype);
                report.compare("modulated_norm", name(dtype), &what, limit, got, want);
            }

            let activations = [None].into_iter().chain(ACTIVATIONS.map(Some));
            for (i, activation) in activations.enumerate() {
                let (bias, wide_bias) = match i % 2 {
                    0 => (&bias, &wide_bias),
                    _ => (&numbers, &wide_numbers),
                };
                let after = fused::Epilogue {
                    bias: Some(bias),
                    activation,
                    gate: Some(&gate),
                    residual: Some(&residual),
                };
                let sum = wide_x.broadcast_add(wide_bias)?;
                let active = match activation {
                    Some(activation) => activation.forward(&sum)?,
                    None => sum,
                };
                let want = (&wide_residual + active.broadcast_mul(&wide_gate)?)?.to_dtype(dtype);
                let what = format!("{activation:?} {place}");
                // Without a kernel, every device rounds after every step.
                let limit = match activation {
                    Some(Activation::Sigmoid) => limit.max(1e-3),
                    _ => limit,
                };
                report.compare("epilogue", name(dtype), &what, limit, after.of(&x), want);
            }

            let turned = |d: &Device| part(d, &[batch, tokens, 3, 8], Arrangement::Narrowed, 6);
            let table = |d: &Device, seed| part(d, &[tokens, 4], Arrangement::Contiguous, seed);
            let got =
                fused::rope_i_thd(&turned(&device)?, &table(&device, 7)?, &table(&device, 8)?);
            let (cos, sin) = (table(&Device::Cpu, 7)?, table(&Device::Cpu, 8)?);
            let wide = widen(&turned(&Device::Cpu)?)?
                .transpose(1, 2)?
                .contiguous()?;
            let want = candle_nn::rotary_emb::rope_i_slow(&wide, &widen(&cos)?, &widen(&sin)?)?;
            let want = want.transpose(1, 2)?.to_dtype(dtype);
            report.compare("rope_i_thd", name(dtype), &place, limit, got, want);
        }
        // Gradients take the plain way.
        let x = Var::from_tensor(&Tensor::ones((1, 2, 4), DType::F32, &device)?)?;
        let half = (Tensor::ones(4, DType::F32, &device)? * 0.5)?;
        let after = fused::Epilogue {
            bias: Some(&half),
            activation: Some(Activation::Relu),
            gate: Some(&half),
            residual: Some(&x),
        };
        let store = after.of(&x)?.sum_all()?.backward()?;
        let gradient = store.get(&x).expect("a gradient").flatten_all()?;
        ensure!(gradient.to_vec1::<f32>()? == [1.5; 8], "{gradient}");
        let normed = fused::modulated_norm(&x, &half, Some(&half), 1e-6)?;
        ensure!(normed.sum_all()?.backward()?.get(&x).is_some());
    }
    Ok(())
}

/// Gradients take the plain way, so that training works through the same code.
fn gradients_flow_through(context: &Context, _: &mut Report) -> Result<()> {
    let device = context.device.clone();
    let gradients = |device: &Device| -> Result<Vec<Vec<f32>>> {
        let part = |seed| {
            tensor(
                device,
                DType::F32,
                &[4, 8],
                Arrangement::Contiguous,
                seed,
                (-1., 1.),
            )
        };
        let (x, residual) = (Var::from_tensor(&part(1)?)?, part(2)?);
        let weight = Var::from_tensor(&part(3)?.get(0)?)?;
        let (sum, normed) = fused::add_rms_norm(&x, &residual, &weight, 1e-5)?;
        let loss = (fused::silu_mul(&normed, &sum)? + fused::gelu_mul(&sum, &normed)?)?
            .sqr()?
            .sum_all()?;
        let store = loss.backward()?;
        [&x, &weight]
            .iter()
            .map(|v| store.get(v).expect("a gradient").flatten_all()?.to_vec1())
            .collect()
    };
    for (got, want) in gradients(&device)?.iter().zip(gradients(&Device::Cpu)?) {
        for (g, w) in got.iter().zip(want) {
            ensure!((g - w).abs() <= 1e-4 * (1. + w.abs()), "{g} instead of {w}");
        }
    }
    Ok(())
}

fn odd_halves_are_refused(context: &Context, _: &mut Report) -> Result<()> {
    let x = Tensor::zeros((2, 5), DType::F32, &context.device)?;
    let error = error_of(fused::gate_mul_packed(Activation::Silu, &x), "half of 5")?;
    ensure!(error.contains("[2, 5]"), "{error}");
    Ok(())
}

/// Choices of experts as a router makes them: slots and experts sorted by expert, on `device`.
fn route(tokens: usize, topk: usize, experts: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let mut pairs: Vec<(u32, u32)> = (0..tokens * topk)
        .map(|slot| ((slot * 7 + slot / 3) as u32 % experts as u32, slot as u32))
        .collect();
    pairs.sort();
    let (experts, slots): (Vec<u32>, Vec<u32>) = pairs.into_iter().unzip();
    Ok((Tensor::new(slots, device)?, Tensor::new(experts, device)?))
}

/// out[slot] = w[expert] x[row of slot] * weight of slot, in f64.
fn textbook(
    x: &Tensor,
    w: &Tensor,
    factors: Option<&Tensor>,
    (slots, experts): (&Tensor, &Tensor),
    topk: usize,
) -> Result<Tensor> {
    let per_row = if factors.is_some() { 1 } else { topk };
    let (slots, experts) = (slots.to_vec1::<u32>()?, experts.to_vec1::<u32>()?);
    let factors = factors
        .map(|f| f.flatten_all()?.to_vec1::<f32>())
        .transpose()?;
    let mut rows = vec![None; slots.len()];
    for (&slot, &expert) in slots.iter().zip(&experts) {
        let slot = slot as usize;
        let row = x
            .get(slot / per_row)?
            .unsqueeze(0)?
            .matmul(&w.get(expert as usize)?.t()?)?;
        let factor = factors.as_ref().map_or(1., |f| f64::from(f[slot]));
        rows[slot] = Some((row * factor)?);
    }
    let rows: Vec<Tensor> = rows
        .into_iter()
        .map(|r| r.expect("each slot once"))
        .collect();
    Tensor::cat(&rows, 0)
}

fn experts(context: &Context, report: &mut Report) -> Result<()> {
    let (k, n) = (40, 19);
    for device in [context.device.clone(), Device::Cpu] {
        // Few and many rows for each expert: both kernels.
        for (tokens, topk, experts) in [(1, 2, 4), (5, 2, 8), (33, 4, 6)] {
            for dtype in DTYPES {
                for scaled in [false, true] {
                    let rows = if scaled { tokens * topk } else { tokens };
                    let x = |d: &Device| {
                        tensor(d, dtype, &[rows, k], Arrangement::Narrowed, 1, (-1., 1.))
                    };
                    let w = |d: &Device| {
                        tensor(
                            d,
                            dtype,
                            &[experts, n, k],
                            Arrangement::Contiguous,
                            2,
                            (-1., 1.),
                        )
                    };
                    let factors = |d: &Device| {
                        let factors = tensor(
                            d,
                            DType::F32,
                            &[tokens, topk],
                            Arrangement::Contiguous,
                            3,
                            (0., 1.),
                        )?;
                        Ok::<_, candle_core::Error>(scaled.then_some(factors))
                    };
                    let (slots, ids) = route(tokens, topk, experts, &device)?;
                    let got = moe::moe_gemm(
                        &x(&device)?.force_contiguous()?,
                        &w(&device)?,
                        &factors(&device)?,
                        &slots,
                        &ids,
                        topk,
                        tokens > 1,
                    );
                    let want = textbook(
                        &widen(&x(&Device::Cpu)?)?.contiguous()?,
                        &widen(&w(&Device::Cpu)?)?,
                        factors(&Device::Cpu)?.as_ref(),
                        (
                            &slots.to_device(&Device::Cpu)?,
                            &ids.to_device(&Device::Cpu)?,
                        ),
                        topk,
                    )?;
                    let what = format!(
                        "{tokens} x {topk} of {experts}, scaled {scaled}, on {:?}",
                        device.location()
                    );
                    report.compare(
                        "moe_gemm",
                        name(dtype),
                        &what,
                        5e-4,
                        got,
                        want.to_dtype(dtype),
                    );
                }
            }
        }
    }
    Ok(())
}

fn quantized_experts(context: &Context, report: &mut Report) -> Result<()> {
    let (k, n) = (256, 24);
    for format in [GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::Q6K] {
        for (tokens, topk, experts) in [(1, 2, 4), (20, 2, 4)] {
            let w = tensor(
                &Device::Cpu,
                DType::F32,
                &[experts, n, k],
                Arrangement::Contiguous,
                5,
                (-1., 1.),
            )?;
            for device in [context.device.clone(), Device::Cpu] {
                let quantized = QTensor::quantize_onto(&w, format, &device)?;
                let exact = QTensor::quantize(&w, format)?.dequantize(&Device::Cpu)?;
                for scaled in [false, true] {
                    let rows = if scaled { tokens * topk } else { tokens };
                    let x = |d: &Device| {
                        tensor(
                            d,
                            DType::F32,
                            &[rows, k],
                            Arrangement::Contiguous,
                            6,
                            (-1., 1.),
                        )
                    };
                    let factors = tensor(
                        &Device::Cpu,
                        DType::F32,
                        &[tokens, topk],
                        Arrangement::Contiguous,
                        3,
                        (0., 1.),
                    )?;
                    let factors = scaled.then_some(factors);
                    let on_device = factors.as_ref().map(|f| f.to_device(&device)).transpose()?;
                    let (slots, ids) = route(tokens, topk, experts, &device)?;
                    let got = moe::moe_gemm_gguf(
                        &x(&device)?,
                        &quantized,
                        &on_device,
                        &slots,
                        &ids,
                        topk,
                        tokens > 1,
                        DType::F32,
                    );
                    let want = textbook(
                        &widen(&x(&Device::Cpu)?)?,
                        &widen(&exact)?,
                        factors.as_ref(),
                        (
                            &slots.to_device(&Device::Cpu)?,
                            &ids.to_device(&Device::Cpu)?,
                        ),
                        topk,
                    )?;
                    let what = format!(
                        "{tokens} x {topk} of {experts}, scaled {scaled}, on {:?}",
                        device.location()
                    );
                    let label = format!("{format:?}").to_lowercase();
                    report.compare(
                        "moe_gemm_gguf",
                        &label,
                        &what,
                        5e-4,
                        got,
                        want.to_dtype(DType::F32),
                    );
                }
            }
        }
    }
    Ok(())
}

fn slots_that_do_not_fit_are_refused(_: &Context, _: &mut Report) -> Result<()> {
    let x = Tensor::ones((2, 4), DType::F32, &Device::Cpu)?;
    let w = Tensor::ones((3, 5, 4), DType::F32, &Device::Cpu)?;
    let ids = |values: &[u32]| Tensor::new(values, &Device::Cpu);
    for (slots, experts, complaint) in [
        (ids(&[0, 0])?, ids(&[0, 1])?, "slot 0 occurs twice"),
        (ids(&[0, 2])?, ids(&[0, 1])?, "no slot 2"),
        (ids(&[0, 1])?, ids(&[0, 3])?, "no expert 3"),
        (ids(&[0])?, ids(&[0])?, "shape [2]"),
    ] {
        let outcome = moe::moe_gemm(&x, &w, &None, &slots, &experts, 1, false);
        let error = error_of(outcome, complaint)?;
        ensure!(error.contains(complaint), "{error}");
    }
    Ok(())
}
