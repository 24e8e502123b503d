//! Gated activations.

use crate::lanes::{erf, exp, for_each_level, silu, Lanes, Map};
use crate::parallel::{written, On, Shared, Threads};

/// What is made of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + exp(-x)).
    Silu,
    /// x (1 + erf(x / sqrt(2))) / 2; the error function has an error of at most 4e-7.
    Gelu,
    /// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))) / 2.
    GeluTanh,
}

/// Rows of this many elements, and how far they are apart.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// From the first element of the first row on.
    pub elements: &'a [f32],
    /// From one row to the next.
    pub stride: usize,
}

/// `activation(gate) * up` of `rows` rows of `width` elements: `(rows, width)`.
pub fn gate(
    threads: &dyn Threads,
    activation: Activation,
    gate: Rows,
    up: Rows,
    (rows, width): (usize, usize),
) -> Vec<f32> {
    gate_at(On::best(threads), activation, gate, up, (rows, width))
}

pub(crate) fn gate_at(
    on: On,
    activation: Activation,
    gate: Rows,
    up: Rows,
    (rows, width): (usize, usize),
) -> Vec<f32> {
    if rows == 0 || width == 0 {
        return Vec::new();
    }
    for x in [gate, up] {
        assert!(x.elements.len() >= (rows - 1) * x.stride + width);
    }
    // Some rows a task, so that it is worth one.
    let few = (4096 / width).clamp(1, rows);
    let some = |task: usize, out: Shared| {
        for row in task * few..(task * few + few).min(rows) {
            // SAFETY: the level is the processor's, and this row of the output is this task's.
            unsafe {
                let out = out.pointer().add(row * width);
                let gate = &gate.elements[row * gate.stride..][..width];
                one(
                    on.level,
                    activation,
                    gate,
                    &up.elements[row * up.stride..][..width],
                    out,
                );
            }
        }
    };
    // SAFETY: the tasks are all rows.
    unsafe {
        written(rows * width, |out| {
            on.for_each(rows.div_ceil(few), rows * width, |task| some(task, out));
        })
    }
}

for_each_level!(one = row(activation: Activation, gate: &[f32], up: &[f32], out: *mut f32));

#[inline(always)]
unsafe fn row<L: Lanes>(activation: Activation, gate: &[f32], up: &[f32], out: *mut f32) {
    match activation {
        Activation::Silu => each::<L>(gate, up, out, &Silu),
        Activation::Gelu => each::<L>(gate, up, out, &Gelu),
        Activation::GeluTanh => each::<L>(gate, up, out, &GeluTanh),
    }
}

struct Silu;

impl<L: Lanes> Map<L> for Silu {
    #[inline(always)]
    unsafe fn of(&self, x: L::V) -> L::V {
        silu::<L>(x)
    }
}

struct Gelu;

impl<L: Lanes> Map<L> for Gelu {
    #[inline(always)]
    unsafe fn of(&self, x: L::V) -> L::V {
        let erf = erf::<L>(L::mul(x, L::splat(std::f32::consts::FRAC_1_SQRT_2)));
        L::mul(L::mul(x, L::splat(0.5)), L::add(L::splat(1.0), erf))
    }
}

struct GeluTanh;

impl<L: Lanes> Map<L> for GeluTanh {
    #[inline(always)]
    unsafe fn of(&self, x: L::V) -> L::V {
        // (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y))
        let inner = L::fma(L::mul(x, x), L::splat(0.044_715), L::splat(1.0));
        let twice = L::mul(L::mul(x, inner), L::splat(-1.595_769));
        L::div(x, L::add(L::splat(1.0), exp::<L>(twice)))
    }
}

#[inline(always)]
unsafe fn each<L: Lanes>(gate: &[f32], up: &[f32], to: *mut f32, f: &impl Map<L>) {
    let (gate, up, count) = (gate.as_ptr(), up.as_ptr(), up.len());
    let whole = count / L::N * L::N;
    let mut i = 0;
    while i < whole {
        let x = L::mul(f.of(L::load(gate.add(i))), L::load(up.add(i)));
        L::store(to.add(i), x);
        i += L::N;
    }
    let rest = count - whole;
    if rest > 0 {
        let x = f.of(L::load_part(gate.add(whole), rest));
        L::store_part(
            to.add(whole),
            L::mul(x, L::load_part(up.add(whole), rest)),
            rest,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::all;

    /// The error function by its series, for arguments up to 4 in f64.
    fn erf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        if x.abs() > 4.0 {
            x.signum()
        } else {
            sum * 2.0 / std::f64::consts::PI.sqrt()
        }
    }

    fn plain(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::Gelu => x * (1.0 + erf(x / 2f64.sqrt())) / 2.0,
            Activation::GeluTanh => {
                x * (1.0
                    + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
                    / 2.0
            }
        }
    }

    const ALL: [Activation; 3] = [Activation::Silu, Activation::Gelu, Activation::GeluTanh];

    #[test]
    fn gates_are_right_to_seven_digits() {
        let x: Vec<f32> = (-12_000..=12_000).map(|i| i as f32 / 1000.0).collect();
        let up = vec![1f32; x.len()];
        for (on, activation) in all().into_iter().flat_map(|on| ALL.map(|a| (on, a))) {
            let level = on.level;
            let rows = |elements| Rows {
                elements,
                stride: 0,
            };
            let out = gate_at(on, activation, rows(&x), rows(&up), (1, x.len()));
            for (x, found) in x.iter().zip(&out) {
                let expected = plain(activation, f64::from(*x));
                let apart = (f64::from(*found) - expected).abs();
                assert!(
                    apart < 4e-7 * f64::from(x.abs()).max(1.0),
                    "{level:?}, {activation:?}({x}): {found} for {expected}"
                );
            }
        }
    }

    #[test]
    fn halves_of_a_product_are_read_in_place() {
        let both: Vec<f32> = (0..5 * 46).map(|i| i as f32 / 100.0 - 1.0).collect();
        for on in all() {
            let level = on.level;
            let (gate, up) = (
                Rows {
                    elements: &both,
                    stride: 46,
                },
                Rows {
                    elements: &both[23..],
                    stride: 46,
                },
            );
            let out = gate_at(on, Activation::Silu, gate, up, (5, 23));
            for (i, found) in out.iter().enumerate() {
                let at = i / 23 * 46 + i % 23;
                let expected = plain(Activation::Silu, both[at].into()) * f64::from(both[at + 23]);
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-6,
                    "{level:?}, {i}"
                );
            }
        }
    }

    #[test]
    fn ends_are_limits() {
        let x = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            0.0,
            200.0,
            -200.0,
        ];
        for (on, activation) in all().into_iter().flat_map(|on| ALL.map(|a| (on, a))) {
            let level = on.level;
            let rows = |elements| Rows {
                elements,
                stride: 0,
            };
            let out = gate_at(on, activation, rows(&x), rows(&[1.0; 6]), (1, 6));
            assert!(
                out[0].is_nan() && out[1] == f32::INFINITY,
                "{level:?}, {activation:?}: {out:?}"
            );
            // -inf times nothing, as the formula has it.
            assert!(out[2].is_nan(), "{level:?}, {activation:?}: {out:?}");
            assert!(
                out[3] == 0.0 && out[4] == 200.0 && out[5].abs() < 1e-30,
                "{level:?}, {activation:?}: {out:?}"
            );
        }
    }
}
