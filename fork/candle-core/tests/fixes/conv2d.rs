//! Convolutions of f32 against sums in f64.

use candle_core::{Device, Result, Tensor};

struct Case {
    /// Pictures, input channels, height, width.
    input: (usize, usize, usize, usize),
    /// Output channels, height, width.
    kernel: (usize, usize, usize),
    padding: usize,
    stride: usize,
    dilation: usize,
}

const CASES: [Case; 9] = {
    let plain = Case {
        input: (1, 3, 7, 5),
        kernel: (4, 3, 3),
        padding: 1,
        stride: 1,
        dilation: 1,
    };
    [
        Case { ..plain },
        // Several tiles, and parts of channels.
        Case {
            input: (2, 16, 40, 33),
            kernel: (40, 3, 3),
            ..plain
        },
        Case {
            input: (1, 32, 8, 8),
            kernel: (64, 3, 3),
            ..plain
        },
        // Rows wider than a tile.
        Case {
            input: (1, 2, 3, 600),
            kernel: (3, 3, 3),
            ..plain
        },
        Case {
            stride: 2,
            padding: 0,
            ..plain
        },
        Case {
            stride: 3,
            padding: 2,
            dilation: 2,
            kernel: (5, 2, 3),
            ..plain
        },
        // A padding wider than the kernel: whole rows and columns see nothing.
        Case {
            padding: 4,
            kernel: (2, 2, 2),
            ..plain
        },
        Case {
            padding: 0,
            kernel: (6, 1, 1),
            input: (3, 5, 4, 9),
            ..plain
        },
        Case {
            padding: 1,
            kernel: (6, 1, 1),
            stride: 2,
            ..plain
        },
    ]
};

fn numbers(count: usize, step: usize) -> Vec<f32> {
    (0..count)
        .map(|i| (i * step % 97) as f32 / 48.0 - 1.0)
        .collect()
}

impl Case {
    fn expected(&self, input: &[f32], kernel: &[f32]) -> Vec<f64> {
        let (pictures, channels, height, width) = self.input;
        let (outputs, kernel_height, kernel_width) = self.kernel;
        let out = |size, kernel| {
            (size + 2 * self.padding - self.dilation * (kernel - 1) - 1) / self.stride + 1
        };
        let mut all = Vec::new();
        for picture in 0..pictures {
            for output in 0..outputs {
                for y in 0..out(height, kernel_height) {
                    for x in 0..out(width, kernel_width) {
                        let mut sum = 0.0;
                        for channel in 0..channels {
                            for ky in 0..kernel_height {
                                for kx in 0..kernel_width {
                                    let place = |at: usize, k: usize| {
                                        (at * self.stride + k * self.dilation)
                                            .checked_sub(self.padding)
                                    };
                                    let (Some(iy), Some(ix)) = (place(y, ky), place(x, kx)) else {
                                        continue;
                                    };
                                    if iy < height && ix < width {
                                        let a = input[((picture * channels + channel) * height
                                            + iy)
                                            * width
                                            + ix];
                                        let b = kernel[((output * channels + channel)
                                            * kernel_height
                                            + ky)
                                            * kernel_width
                                            + kx];
                                        sum += a as f64 * b as f64;
                                    }
                                }
                            }
                        }
                        all.push(sum);
                    }
                }
            }
        }
        all
    }
}

#[test]
fn are_sums_of_products() -> Result<()> {
    for (number, case) in CASES.iter().enumerate() {
        let (pictures, channels, height, width) = case.input;
        let (outputs, kernel_height, kernel_width) = case.kernel;
        let input = numbers(pictures * channels * height * width, 31);
        let kernel = numbers(outputs * channels * kernel_height * kernel_width, 17);
        let expected = case.expected(&input, &kernel);
        let x = Tensor::new(input, &Device::Cpu)?.reshape(case.input)?;
        let k = Tensor::new(kernel, &Device::Cpu)?.reshape((
            outputs,
            channels,
            kernel_height,
            kernel_width,
        ))?;
        // Views that lie otherwise in memory.
        let turned = |x: &Tensor| x.permute((1, 0, 3, 2))?.contiguous()?.permute((1, 0, 3, 2));
        for (x, k) in [(x.clone(), k.clone()), (turned(&x)?, turned(&k)?)] {
            let found = x.conv2d(&k, case.padding, case.stride, case.dilation, 1)?;
            let found: Vec<f32> = found.flatten_all()?.to_vec1()?;
            assert_eq!(found.len(), expected.len(), "case {number}");
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (*found as f64 - expected).abs() < 1e-4,
                    "case {number}: {found} for {expected}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn of_no_channels_are_zeros() -> Result<()> {
    let x = Tensor::zeros((1, 0, 4, 4), candle_core::DType::F32, &Device::Cpu)?;
    let k = Tensor::zeros((2, 0, 3, 3), candle_core::DType::F32, &Device::Cpu)?;
    let y: Vec<f32> = x.conv2d(&k, 1, 1, 1, 1)?.flatten_all()?.to_vec1()?;
    assert_eq!(y, [0f32; 32]);
    Ok(())
}
