//! Latents in another size, as PyTorch's `interpolate` resizes them: two products with small matrices.

use candle_core::{Device, Result, Tensor};

/// How values between pixels are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resample {
    /// The pixel that the place, cut off, lies in.
    Nearest,
    /// The pixel whose middle is nearest.
    NearestExact,
    /// Straight lines between two pixels; `antialias` widens them where pixels are lost.
    Bilinear {
        /// PyTorch's `antialias`.
        antialias: bool,
    },
    /// Straight lines between two pixels, where the middles of the outermost ones stay at the edges (PyTorch's
    /// `align_corners`).
    Corners,
    /// Curves through four pixels.
    Bicubic {
        /// PyTorch's `antialias`, whose curves are flatter.
        antialias: bool,
    },
}

impl Resample {
    /// `(batch, channels, height, width)` with another height and width; f32.
    ///
    /// # Errors
    /// If the device fails.
    pub fn apply(self, x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
        let (batch, channels, h, w) = x.dims4()?;
        if (h, w) == (height, width) {
            return Ok(x.clone());
        }
        let device = x.device();
        let across = self.matrix(w, width, device)?.t()?.contiguous()?;
        let down = self.matrix(h, height, device)?.t()?.contiguous()?;
        let rows = x.contiguous()?.reshape((batch * channels * h, w))?;
        let rows = rows
            .matmul(&across)?
            .reshape((batch * channels, h, width))?;
        let columns = rows.transpose(1, 2)?.contiguous()?;
        let columns = columns.reshape((batch * channels * width, h))?;
        let columns = columns.matmul(&down)?;
        let x = columns.reshape((batch * channels, width, height))?;
        let x = x.transpose(1, 2)?.contiguous()?;
        x.reshape((batch, channels, height, width))
    }

    /// `(outputs, inputs)`: how much of each input is in each output.
    fn matrix(self, inputs: usize, outputs: usize, device: &Device) -> Result<Tensor> {
        let mut values = vec![0f32; inputs * outputs];
        let step = inputs as f64 / outputs as f64;
        for (i, row) in values.chunks_exact_mut(inputs).enumerate() {
            let middle = (i as f64 + 0.5) * step;
            let mut add = |at: i64, weight: f64| {
                row[at.clamp(0, inputs as i64 - 1) as usize] += weight as f32;
            };
            match self {
                Self::Nearest => add((i as f64 * step) as i64, 1.0),
                Self::NearestExact => add(middle as i64, 1.0),
                Self::Bilinear { antialias: false } => {
                    let place = (middle - 0.5).max(0.0);
                    let share = place - place.floor();
                    add(place as i64, 1.0 - share);
                    add(place as i64 + 1, share);
                }
                Self::Corners => {
                    let place = match outputs {
                        1 => 0.0,
                        _ => i as f64 * (inputs - 1) as f64 / (outputs - 1) as f64,
                    };
                    let share = place - place.floor();
                    add(place as i64, 1.0 - share);
                    add(place as i64 + 1, share);
                }
                Self::Bicubic { antialias: false } => {
                    let place = middle - 0.5;
                    let low = place.floor();
                    for k in -1..=2 {
                        add(low as i64 + k, cubic(place - low - k as f64, -0.75));
                    }
                }
                Self::Bilinear { antialias: true } => {
                    wide(middle, step, 1.0, inputs, |x| (1.0 - x.abs()).max(0.0), add);
                }
                Self::Bicubic { antialias: true } => {
                    wide(middle, step, 2.0, inputs, |x| cubic(x, -0.5), add);
                }
            }
        }
        Tensor::from_vec(values, (outputs, inputs), device)
    }
}

/// Adds the weights of a filter of this reach around a place; a filter that steps over pixels is as much wider. What
/// lies outside is left out.
fn wide(
    middle: f64,
    step: f64,
    reach: f64,
    inputs: usize,
    filter: impl Fn(f64) -> f64,
    mut add: impl FnMut(i64, f64),
) {
    let scale = step.max(1.0);
    let reach = reach * scale;
    let low = ((middle - reach + 0.5) as i64).max(0);
    let high = ((middle + reach + 0.5) as i64).min(inputs as i64);
    let weight = |at: i64| filter((at as f64 - middle + 0.5) / scale);
    let sum: f64 = (low..high).map(weight).sum();
    (low..high).for_each(|at| add(at, weight(at) / sum));
}

/// Keys' cubic curve.
fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    match x {
        _ if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        _ if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * a,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of `torch.nn.functional.interpolate` of PyTorch 2.15.
    #[test]
    fn rows_are_pytorchs() {
        let row = [1f32, -2.0, 4.0, 0.5, 3.0];
        for (resample, width, expected) in cases() {
            let x = Tensor::from_slice(&row, (1, 1, 1, 5), &Device::Cpu).unwrap();
            let out = resample.apply(&x, 1, width).unwrap();
            let out: Vec<f32> = out.flatten_all().unwrap().to_vec1().unwrap();
            // Columns are as rows.
            let down = x.transpose(2, 3).unwrap();
            let down = resample.apply(&down, width, 1).unwrap();
            assert_eq!(down.flatten_all().unwrap().to_vec1::<f32>().unwrap(), out);
            for (ours, theirs) in out.iter().zip(&expected) {
                assert!((ours - theirs).abs() < 1e-4, "{resample:?}: {out:?}");
            }
            assert_eq!(out.len(), expected.len());
        }
    }

    fn cases() -> Vec<(Resample, usize, Vec<f32>)> {
        let bilinear = |antialias| Resample::Bilinear { antialias };
        let bicubic = |antialias| Resample::Bicubic { antialias };
        vec![
            (
                Resample::Nearest,
                8,
                vec![1.0, 1.0, -2.0, -2.0, 4.0, 0.5, 0.5, 3.0],
            ),
            (Resample::Nearest, 3, vec![1.0, -2.0, 0.5]),
            (
                Resample::NearestExact,
                8,
                vec![1.0, 1.0, -2.0, 4.0, 4.0, 0.5, 3.0, 3.0],
            ),
            (Resample::NearestExact, 3, vec![1.0, 4.0, 3.0]),
            (
                bilinear(false),
                8,
                vec![1.0, -0.3125, -1.625, 2.125, 2.90625, 0.71875, 1.90625, 3.0],
            ),
            (bilinear(false), 3, vec![0.0, 4.0, 2.16667]),
            (
                Resample::Corners,
                8,
                vec![1.0, -0.71429, -1.14286, 2.28571, 3.0, 1.0, 1.57143, 3.0],
            ),
            (Resample::Corners, 3, vec![1.0, 4.0, 3.0]),
            (
                bilinear(true),
                8,
                vec![1.0, -0.3125, -1.625, 2.125, 2.90625, 0.71875, 1.90625, 3.0],
            ),
            (bilinear(true), 3, vec![-0.28571, 1.88889, 1.92857]),
            (
                bicubic(false),
                8,
                vec![
                    1.2785, -0.77393, -1.81589, 2.48251, 3.51553, 0.58737, 1.64285, 3.23209,
                ],
            ),
            (bicubic(false), 3, vec![-0.27778, 4.0, 2.01852]),
            (
                bicubic(true),
                8,
                vec![
                    1.21587, -0.48647, -1.8548, 2.52448, 3.40643, 0.57135, 1.8368, 3.17989,
                ],
            ),
            (bicubic(true), 3, vec![-0.32308, 1.80698, 2.03846]),
        ]
    }
}
