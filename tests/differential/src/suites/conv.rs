//! Convolutions as users call them, groups included, against the definition in f64. (candle's CPU back end is no
//! oracle: it multiplies only the first batch of some transposed convolutions.)

use crate::{name, tensor, to_f64, Context, Report, Suite};
use candle_core::{DType, Device, Result, Tensor};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("conv", convolutions),
    Suite::unlisted("conv-gradients", gradients),
];

const LIMIT: f64 = 5e-4;
const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

#[derive(Clone, Copy, Debug)]
struct Options {
    transposed: bool,
    padding: usize,
    output_padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

impl Options {
    fn apply(self, x: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let Options {
            transposed,
            padding: p,
            output_padding: o,
            stride: s,
            dilation: d,
            groups: g,
        } = self;
        match (transposed, x.rank()) {
            (false, 3) => x.conv1d(kernel, p, s, d, g),
            (false, _) => x.conv2d(kernel, p, s, d, g),
            (true, 3) => x.conv_transpose1d(kernel, p, o, s, d, g),
            (true, _) => x.conv_transpose2d(kernel, p, o, s, d),
        }
    }

    fn output(self, size: usize, k: usize) -> usize {
        let taps = self.dilation * (k - 1) + 1;
        match self.transposed {
            true => (size - 1) * self.stride + taps + self.output_padding - 2 * self.padding,
            false => (size + 2 * self.padding - taps) / self.stride + 1,
        }
    }

    /// The input coordinate that tap `k` connects with output coordinate `o`.
    fn source(self, o: usize, k: usize, size: usize) -> Option<usize> {
        let input = match self.transposed {
            true => {
                let position = (o + self.padding).checked_sub(k * self.dilation)?;
                (position % self.stride == 0).then_some(position / self.stride)?
            }
            false => (o * self.stride + k * self.dilation).checked_sub(self.padding)?,
        };
        (input < size).then_some(input)
    }

    /// Output shape and values, of images.
    fn definition(self, x: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let sequence = x.rank() == 3;
        let (x, kernel) = match sequence {
            true => (x.unsqueeze(2)?, kernel.unsqueeze(2)?),
            false => (x.clone(), kernel.clone()),
        };
        let vertical = match sequence {
            true => Options {
                padding: 0,
                output_padding: 0,
                stride: 1,
                dilation: 1,
                ..self
            },
            false => self,
        };
        let (batch, c_in, h, w) = x.dims4()?;
        let (first, second, k_h, k_w) = kernel.dims4()?;
        // Channels of one group.
        let inputs = c_in / self.groups;
        let outputs = match self.transposed {
            true => second,
            false => first / self.groups,
        };
        let (out_h, out_w) = (vertical.output(h, k_h), self.output(w, k_w));
        let (x, kernel) = (to_f64(&x)?, to_f64(&kernel)?);
        let mut out = Vec::new();
        for b in 0..batch {
            for co in 0..outputs * self.groups {
                let group = co / outputs;
                for (oy, ox) in (0..out_h).flat_map(|y| (0..out_w).map(move |x| (y, x))) {
                    let mut sum = 0.;
                    for (ky, kx) in (0..k_h).flat_map(|y| (0..k_w).map(move |x| (y, x))) {
                        let (Some(iy), Some(ix)) =
                            (vertical.source(oy, ky, h), self.source(ox, kx, w))
                        else {
                            continue;
                        };
                        for ci in 0..inputs {
                            let channel = group * inputs + ci;
                            let weight = match self.transposed {
                                true => channel * outputs + co % outputs,
                                false => co * inputs + ci,
                            };
                            sum += x[((b * c_in + channel) * h + iy) * w + ix]
                                * kernel[(weight * k_h + ky) * k_w + kx];
                        }
                    }
                    out.push(sum);
                }
            }
        }
        let shape = match sequence {
            true => vec![batch, outputs * self.groups, out_w],
            false => vec![batch, outputs * self.groups, out_h, out_w],
        };
        Tensor::from_vec(out, shape, &Device::Cpu)
    }
}

fn convolutions(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    let operations: [(&str, bool, &[usize], &[usize]); 7] = [
        ("conv1d", false, &[3, 24, 13], &[3]),
        ("conv1d", false, &[2, 4, 9], &[1]),
        ("conv2d", false, &[2, 24, 8, 7], &[3, 2]),
        ("conv2d", false, &[2, 4, 5, 6], &[1, 1]),
        ("conv_transpose1d", true, &[3, 80, 9], &[4]),
        ("conv_transpose2d", true, &[2, 20, 5, 6], &[2, 3]),
        ("conv_transpose2d", true, &[2, 4, 3, 5], &[1, 1]),
    ];
    for (op, transposed, shape, taps) in operations {
        let settings = [(1, 1, 2, 1), (0, 0, 1, 1), (1, 0, 1, 1), (2, 1, 2, 3)];
        for &(padding, output_padding, stride, dilation) in context.first(2, &settings) {
            for &groups in context.first(2, &[1, 4, 2]) {
                let options = Options {
                    transposed,
                    padding,
                    output_padding,
                    stride,
                    dilation,
                    groups,
                };
                if op == "conv_transpose2d" && groups != 1 {
                    continue;
                }
                let c_in = shape[1];
                let channels = match transposed {
                    true => [c_in, 6],
                    false => [6 * groups, c_in / groups],
                };
                let kernel_shape: Vec<usize> = channels.iter().chain(taps).copied().collect();
                for dtype in DTYPES {
                    for &arrangement in context.arrangements() {
                        let make = |device: &Device| -> Result<(Tensor, Tensor)> {
                            Ok((
                                tensor(device, dtype, shape, arrangement, 31, (-1., 1.))?,
                                tensor(device, dtype, &kernel_shape, arrangement, 32, (-1., 1.))?,
                            ))
                        };
                        let (x, kernel) = make(&rocm)?;
                        let got = options.apply(&x, &kernel);
                        let (x, kernel) = make(&Device::Cpu)?;
                        let want = options.definition(&x, &kernel);
                        let what = format!("{shape:?} {taps:?} {arrangement:?} {options:?}");
                        report.compare(op, name(dtype), &what, LIMIT, got, want);
                    }
                }
            }
        }
    }
    Ok(())
}

/// The gradients of all four, which are convolutions with swapped roles themselves, against differences of the sum.
fn gradients(context: &Context, _: &mut Report) -> Result<()> {
    let device = context.device.clone();
    for (transposed, shape, taps) in [
        (false, &[2, 3, 8][..], &[3][..]),
        (false, &[2, 3, 6, 5], &[3, 3]),
        (true, &[2, 3, 4, 5], &[3, 3]),
    ] {
        let options = Options {
            transposed,
            padding: 1,
            output_padding: 0,
            stride: 1,
            dilation: 1,
            groups: 1,
        };
        let channels = if transposed { [3, 4] } else { [4, 3] };
        let kernel_shape: Vec<usize> = channels.iter().chain(taps).copied().collect();
        let make = |shape: &[usize], seed| {
            let numbers = crate::values(shape.iter().product(), seed, -1., 1.);
            Tensor::from_vec(numbers, shape, &device)
        };
        let x = candle_core::Var::from_tensor(&make(shape, 41)?)?;
        let kernel = candle_core::Var::from_tensor(&make(&kernel_shape, 42)?)?;
        let loss = |x: &Tensor, kernel: &Tensor| options.apply(x, kernel)?.sqr()?.sum_all();
        let gradients = loss(&x, &kernel)?.backward()?;
        for (variable, is_x) in [(&x, true), (&kernel, false)] {
            let gradient = to_f64(gradients.get(variable).expect("it takes part"))?;
            // The derivative along a random direction.
            let direction = make(variable.dims(), 43)?;
            let along: f64 = gradient
                .iter()
                .zip(to_f64(&direction)?)
                .map(|(g, d)| g * d)
                .sum();
            let step = |by: f64| -> Result<f64> {
                let moved = (variable.as_tensor() + (&direction * by)?)?;
                let loss = match is_x {
                    true => loss(&moved, &kernel)?,
                    false => loss(&x, &moved)?,
                };
                loss.to_vec0()
            };
            // A quadratic in each operand: the central difference is exact but for rounding.
            let difference = (step(0.5)? - step(-0.5)?) / 1.0;
            ensure!(
                (along - difference).abs() <= 1e-9 * difference.abs(),
                "{options:?} {shape:?} {taps:?}: {along} instead of {difference}"
            );
        }
    }
    Ok(())
}
