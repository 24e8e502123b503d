//! The activation of Apertus: a parabola on one side, an exponential on the other, with trained numbers.
//!
//! "Deriving Activation Functions Using Integration", Huang and Schlag, 2024 (<https://arxiv.org/abs/2411.13010>).

use candle_core::{Result, Tensor};

/// Its numbers in one block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Xielu {
    /// Before softplus.
    pub alpha_p: f64,
    pub alpha_n: f64,
    pub beta: f64,
    pub eps: f64,
}

impl Xielu {
    /// `softplus(alpha_p) x² + beta x` above 0, else `(beta + softplus(alpha_n)) (exp(min(x, eps)) - 1 - x) + beta x`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let softplus = |x: f64| x.exp().ln_1p();
        let (alpha_p, alpha_n) = (softplus(self.alpha_p), self.beta + softplus(self.alpha_n));
        let above = x.relu()?;
        let below = (x - &above)?;
        let bounded = (below.affine(-1.0, self.eps)?.relu()? * -1.0)? + self.eps;
        // What is left of the exponential where `x` is above 0.
        let rest = (above.sign()? * self.eps.min(0.0).exp_m1())?;
        let below = ((bounded?.exp()? - 1.0)? - below - rest)?;
        let above = (above.sqr()? * alpha_p)?;
        ((x * self.beta)? + above)? + (below * alpha_n)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn both_sides_are_as_the_paper_has_them() {
        for eps in [-1e-6, -0.3, 0.2] {
            let xielu = Xielu {
                alpha_p: 0.3,
                alpha_n: -0.4,
                beta: 0.5,
                eps,
            };
            let values: Vec<f64> = (-40..=40).map(|i| f64::from(i) / 10.0).collect();
            let x = Tensor::new(values.as_slice(), &Device::Cpu).unwrap();
            let found = xielu.forward(&x).unwrap().to_vec1::<f64>().unwrap();
            let softplus = |x: f64| (1.0 + x.exp()).ln();
            for (x, found) in values.into_iter().zip(found) {
                let want = match x > 0.0 {
                    true => softplus(0.3) * x * x + 0.5 * x,
                    false => (0.5 + softplus(-0.4)) * (x.min(eps).exp_m1() - x) + 0.5 * x,
                };
                assert!((found - want).abs() < 1e-12, "{x}: {found} for {want}");
            }
        }
    }
}
