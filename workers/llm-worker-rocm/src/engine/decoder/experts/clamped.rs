//! Experts whose gates are clamped: gpt-oss's.

use super::Expert;
use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::traits::ClampedGate;
use candle_core::{bail, Result, Tensor};
use candle_nn::ops;

impl Expert {
    /// `(rows, width)` to the same.
    pub(super) fn forward_clamped(&self, x: &Input, clamp: ClampedGate) -> Result<Tensor> {
        let Some(gate) = &self.gate else {
            bail!("experts whose gates are clamped have gates")
        };
        let [gate, up] = Linear::forward_each([gate, &self.up], x)?;
        self.down.forward(&gated(&gate, &up, clamp)?.into())
    }
}

/// `(up + 1) gate sigmoid(alpha gate)` of numbers that are clamped before.
fn gated(gate: &Tensor, up: &Tensor, by: ClampedGate) -> Result<Tensor> {
    let limit = f64::from(by.limit);
    let gate = gate.minimum(limit)?;
    let open = ops::sigmoid(&(&gate * f64::from(by.alpha))?)?;
    (up.clamp(-limit, limit)? + 1.0)? * (gate * open)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn gates_open_up_to_the_limit() {
        let of = |x: &[f32]| Tensor::new(x, &Device::Cpu).unwrap();
        let (gates, ups) = ([-3f32, 0.5, 7.0, 50.0], [9f32, -8.0, 0.25, -1.0]);
        let by = ClampedGate {
            alpha: 1.702,
            limit: 7.0,
        };
        let got = gated(&of(&gates), &of(&ups), by).unwrap();
        let got = got.to_vec1::<f32>().unwrap();
        for ((gate, up), got) in [-3f64, 0.5, 7.0, 7.0]
            .iter()
            .zip([7.0, -7.0, 0.25, -1.0])
            .zip(got)
        {
            let want = (up + 1.0) * gate / (1.0 + (-f64::from(by.alpha) * gate).exp());
            assert!(
                (f64::from(got) - want).abs() < 1e-5,
                "{gate} {up}: {got} for {want}"
            );
        }
    }
}
