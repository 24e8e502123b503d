//! Functions of elements: packs of neighbours, and what is left after the last one.

use super::{split_dtype, unknown};
use crate::ops::binary::{BinaryOp, CompareOp};
use crate::ops::gated::Gate;
use crate::ops::unary::UnaryOp;
use crate::ops::{self};
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, decode, encode, spoil_memory, Numbers, Tensor};
use crate::{DType, DeclaredKernel, Device, View};

/// Elements: of every dtype more than two blocks have in packs, and no multiple of a pack.
const COUNT: usize = 6151;

/// Inputs behind the start of their buffers are read element by element.
const OFFSETS: [usize; 2] = [0, 1];

pub(super) fn affine(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((function, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let low = if function == "elu" { -2.0 } else { 1.0 };
    let x = tensor(device, dtype, 0, |n| n.uniform(low, 5.0))?;
    spoil_memory(device, COUNT * dtype.size_in_bytes())?;
    let (out, want): (_, Vec<f64>) = match function {
        "affine" => (
            ops::affine::affine(device, &x.view(), 2.0, 1.0)?,
            x.values.iter().map(|x| x * 2.0 + 1.0).collect(),
        ),
        "powf" => (
            ops::affine::powf(device, &x.view(), 2.0)?,
            x.values.iter().map(|x| x * x).collect(),
        ),
        _ => (
            ops::affine::elu(device, &x.view(), 0.5)?,
            x.values.iter().map(|&x| elu(x)).collect(),
        ),
    };
    compare(device, &out, dtype, &want)
}

fn elu(x: f64) -> f64 {
    match x > 0.0 {
        true => x,
        false => x.exp_m1() * 0.5,
    }
}

pub(super) fn unary(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((name, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let Some(op) = UnaryOp::ALL.into_iter().find(|op| op.as_str() == name) else {
        return unknown(kernel);
    };
    let number = |n: &mut Numbers| match op {
        UnaryOp::Log | UnaryOp::Sqrt | UnaryOp::Recip => n.uniform(0.25, 3.0),
        _ if dtype.is_float() => n.uniform(-3.0, 3.0),
        _ => n.uniform(-50.0, 50.0),
    };
    for offset in OFFSETS {
        let x = tensor(device, dtype, offset, number)?;
        spoil_memory(device, COUNT * dtype.size_in_bytes())?;
        let out = ops::unary::unary(device, op, &x.view())?;
        let want: Vec<f64> = x.values.iter().map(|&x| function(op, x)).collect();
        if let Some(wrong) = compare(device, &out, dtype, &want)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

pub(super) fn function(op: UnaryOp, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match op {
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Abs => x.abs(),
        UnaryOp::Neg => -x,
        UnaryOp::Recip => 1.0 / x,
        UnaryOp::Sqr => x * x,
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Gelu => gelu(x),
        UnaryOp::GeluErf => gelu_erf(x),
        UnaryOp::Erf => erf(x),
        UnaryOp::Relu => x.max(0.0),
        UnaryOp::Silu => x * sigmoid(x),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round(),
        UnaryOp::Sign if x == 0.0 => 0.0,
        UnaryOp::Sign => x.signum(),
        UnaryOp::Sigmoid => sigmoid(x),
    }
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

fn gelu_erf(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

/// By its series, which is good for numbers of small magnitude.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

pub(super) fn binary(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((name, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    for offset in OFFSETS {
        // Differences and quotients of these are in every dtype.
        let x = tensor(device, dtype, offset, |n| n.uniform(8.0, 14.0))?;
        let mut numbers = Numbers::new(7);
        let y: Vec<f64> = (x.values.iter().enumerate())
            .map(|(i, x)| match i % 3 {
                0 => *x,
                _ => numbers.uniform(1.0, 8.0),
            })
            .collect();
        let y = Tensor::new(device, dtype, &[COUNT], &y)?;
        let pairs = || x.values.iter().zip(&y.values);
        let finding = if name == "pow" {
            spoil_memory(device, COUNT * dtype.size_in_bytes())?;
            // Small bases, so that all dtypes have the powers.
            let x = tensor(device, dtype, offset, |n| n.uniform(0.5, 1.5))?;
            let out = ops::binary::power(device, &x.view(), &y.view())?;
            let pairs = x.values.iter().zip(&y.values);
            let want: Vec<f64> = pairs.map(|(x, y)| x.powf(*y)).collect();
            compare(device, &out, dtype, &want)
        } else if let Some(op) = BinaryOp::ALL.into_iter().find(|op| op.as_str() == name) {
            spoil_memory(device, COUNT * dtype.size_in_bytes())?;
            let out = ops::binary::binary(device, op, &x.view(), &y.view())?;
            let want: Vec<f64> = pairs()
                .map(|(x, y)| arithmetic(op, dtype, *x, *y))
                .collect();
            compare(device, &out, dtype, &want)
        } else if let Some(op) = CompareOp::ALL.into_iter().find(|op| op.as_str() == name) {
            spoil_memory(device, COUNT)?;
            let out = ops::binary::compare(device, op, &x.view(), &y.view())?;
            let want: Vec<f64> = pairs().map(|(x, y)| comparison(op, *x, *y)).collect();
            compare(device, &out, DType::U8, &want)
        } else {
            unknown(kernel)
        };
        if let Some(wrong) = finding? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

fn arithmetic(op: BinaryOp, dtype: DType, x: f64, y: f64) -> f64 {
    let result = match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        BinaryOp::Div => x / y,
        BinaryOp::Minimum => x.min(y),
        BinaryOp::Maximum => x.max(y),
    };
    match dtype.is_float() {
        true => result,
        false => result.trunc(),
    }
}

fn comparison(op: CompareOp, x: f64, y: f64) -> f64 {
    f64::from(u8::from(match op {
        CompareOp::Eq => x == y,
        CompareOp::Ne => x != y,
        CompareOp::Lt => x < y,
        CompareOp::Le => x <= y,
        CompareOp::Gt => x > y,
        CompareOp::Ge => x >= y,
    }))
}

pub(super) fn cast(device: &Device, kernel: &DeclaredKernel) -> Finding {
    if kernel.name == "halve_f8e4m3_fnuz" {
        return halved(device);
    }
    let types = split_dtype(&kernel.name).and_then(|(head, to)| Some((split_dtype(head)?.1, to)));
    let Some((from, to)) = types else {
        return unknown(kernel);
    };
    for offset in OFFSETS {
        let x = tensor(device, from, offset, |n| n.below(200) as f64 / 2.0)?;
        let dims = [COUNT];
        // The same dtype has a copy, unless there are gaps.
        let gaps = Tensor::new(device, from, &[2 * COUNT], &twice(&x.values))?;
        let view = match from == to {
            true => crate::View {
                dims: &dims,
                strides: &[2],
                ..gaps.view()
            },
            false => x.view(),
        };
        spoil_memory(device, COUNT * to.size_in_bytes())?;
        let out = ops::cast::cast(device, &view, to)?;
        let want = decode(to, &encode(to, &x.values));
        if let Some(wrong) = compare(device, &out, to, &want)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

/// Every byte of f8e4m3, over and over.
fn halved(device: &Device) -> Finding {
    let bytes: Vec<u8> = (0..COUNT).map(|i| i as u8).collect();
    let x = device.upload(&bytes)?;
    let view = crate::View::contiguous(&x, DType::F8E4M3, &[COUNT], &[1]);
    spoil_memory(device, COUNT)?;
    let out = ops::cast::halve_fnuz(device, &view)?;
    let want: Vec<f64> = bytes.iter().map(|&byte| f64::from(fnuz(byte))).collect();
    compare(device, &out, DType::U8, &want)
}

fn fnuz(byte: u8) -> u8 {
    match byte {
        0x7f | 0xff => 0x80,
        0x80 => 0,
        _ => byte,
    }
}

fn twice(values: &[f64]) -> Vec<f64> {
    values.iter().flat_map(|v| [*v, 0.0]).collect()
}

pub(super) fn gated(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let wanted = head.trim_end_matches("_mul");
    let Some(gate) = Gate::ALL.into_iter().find(|gate| gate.as_str() == wanted) else {
        return unknown(kernel);
    };
    let op = activation(gate);
    let x = Tensor::random(device, dtype, &[COUNT], (-3.0, 3.0))?;
    let y = Tensor::random(device, dtype, &[COUNT], (-2.0, 2.5))?;
    spoil_memory(device, COUNT * dtype.size_in_bytes())?;
    let out = ops::gated::gate_mul(device, gate, &x.view(), &y.view())?;
    let pairs = x.values.iter().zip(&y.values);
    let want: Vec<f64> = pairs.map(|(x, y)| function(op, *x) * y).collect();
    compare(device, &out, dtype, &want)
}

fn activation(gate: Gate) -> UnaryOp {
    match gate {
        Gate::Silu => UnaryOp::Silu,
        Gate::Gelu => UnaryOp::Gelu,
        Gate::GeluErf => UnaryOp::GeluErf,
        Gate::Relu => UnaryOp::Relu,
    }
}

/// With a gate for each two of six rows, which are no multiple of what is loaded at once.
pub(super) fn epilogue(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let wanted = head.trim_start_matches("epilogue_");
    let gate = Gate::ALL.into_iter().find(|gate| gate.as_str() == wanted);
    if gate.is_none() && wanted != "none" {
        return unknown(kernel);
    }
    let dims = [3, 2, 333];
    let columns = dims[2];
    let product = Tensor::random(device, dtype, &dims, (-3.0, 3.0))?;
    let bias = Tensor::random(device, dtype, &[columns], (-1.0, 1.0))?;
    let gates = Tensor::random(device, dtype, &[3, columns], (-2.0, 2.5))?;
    let residual = Tensor::random(device, dtype, &dims, (-2.0, 2.0))?;
    spoil_memory(device, product.values.len() * dtype.size_in_bytes())?;
    let shared = View {
        dims: &dims,
        strides: &[columns, 0, 1],
        ..gates.view()
    };
    let biases = View {
        dims: &dims,
        strides: &[0, 0, 1],
        ..bias.view()
    };
    let after = ops::epilogue::Epilogue {
        bias: Some(&biases),
        activation: gate,
        gate: Some(&shared),
        residual: Some(&residual.view()),
    };
    let out = ops::epilogue::epilogue(device, &product.view(), &after)?;
    let value = |(i, x): (usize, &f64)| {
        let sum = x + bias.values[i % columns];
        let active = gate.map_or(sum, |gate| function(activation(gate), sum));
        let gate = gates.values[i / (2 * columns) * columns + i % columns];
        active * gate + residual.values[i]
    };
    let want: Vec<f64> = product.values.iter().enumerate().map(value).collect();
    compare(device, &out, dtype, &want)
}

fn tensor(
    device: &Device,
    dtype: DType,
    offset: usize,
    mut number: impl FnMut(&mut Numbers) -> f64,
) -> crate::Result<Tensor> {
    let mut numbers = Numbers::new(offset as u64 + 3);
    let values: Vec<f64> = (0..COUNT).map(|_| number(&mut numbers)).collect();
    Tensor::behind(device, dtype, &[COUNT], &values, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_is_erf() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520499877813),
            (-2.0, -0.995322265019),
            (3.0, 0.999977909503),
        ] {
            assert!((erf(x) - want).abs() < 1e-11, "{x}");
        }
    }
}
