//! Products of weights as f16.

use super::*;

/// The formats that are multiplied as f16, by elements that make rows a multiple of 16 bytes.
const HALVES: [(Format, usize); 3] = [(Format::Q4K, 256), (Format::Q5K, 256), (Format::Q6K, 2048)];

/// Blocks whose scales are of all magnitudes that a binary16 has, by halves of the exponents.
fn spread_scales(weights: &mut [u8], format: Format) {
    let at: &[usize] = match format {
        Format::Q6K => &[208],
        _ => &[0, 2],
    };
    for (i, block) in weights.chunks_exact_mut(format.type_size()).enumerate() {
        for at in at {
            // Up to 2^15 and down to the subnormal ones.
            block[at + 1] = (block[at + 1] & 0x83) | ((i * 7 % 30) as u8 * 4);
        }
    }
}

#[test]
fn as_halves() {
    let device = device();
    let mut rng = Rng::new(23);
    let none = Epilogue::default();
    for (format, multiple) in HALVES {
        for (rows, blocks, columns, scale) in [
            (40, 1, 1, 1.0f32),
            (65, 2, 9, 1.0),
            (31, 1, 16, 1e-30),
            (33, 1, 32, 1e30),
        ] {
            let cols = multiple * blocks;
            let weights = Weights::at(&device, format, (rows, cols), 32, &mut rng);
            let mut x = rng.vec::<f32>(columns * cols, -1.0, 1.0);
            // Neighbouring blocks of very different magnitudes.
            for (i, v) in x.iter_mut().enumerate() {
                *v *= scale * if i / 32 % 5 == 0 { 100.0 } else { 1.0 };
            }
            let x = HostTensor::contiguous(x, &[columns, cols]);
            let buffer = x.upload(&device);
            let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
            let y = halves(&device, &weights.matrix(), &quantized, &none, DType::F32);
            match device.properties().arch.generation().matrix() {
                Some(_) => {
                    let what = format!("halves of {format}, {rows} by {cols}, {columns} columns");
                    let y = download::<f32>(&device, &y.unwrap());
                    compare(&y, &weights, &eight_bits(&x.storage), HALVED, 1, &what);
                }
                None => assert!(matches!(y, Err(Error::InvalidArgument { .. }))),
            }
        }
    }
}

/// Sums of what f16 could not hold: scales of blocks from its smallest numbers to its largest.
#[test]
fn as_halves_whatever_the_scales_are() {
    let device = device();
    if device.properties().arch.generation().matrix().is_none() {
        return;
    }
    let mut rng = Rng::new(24);
    for (format, multiple) in HALVES {
        let (rows, cols, columns) = (40, 2 * multiple, 9);
        let mut bytes = moderate_blocks(format, rows * cols / format.block_size(), &mut rng);
        spread_scales(&mut bytes, format);
        let weights = Weights {
            format,
            rows,
            cols,
            values: values(&device, format, &bytes),
            buffer: device.upload(&bytes).unwrap(),
            offset: 0,
        };
        let x = HostTensor::contiguous(rng.vec(columns * cols, -1.0, 1.0), &[columns, cols]);
        let buffer = x.upload(&device);
        let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
        let none = Epilogue::default();
        let y = halves(&device, &weights.matrix(), &quantized, &none, DType::F32).unwrap();
        let y = download::<f32>(&device, &y);
        let what = format!("halves of {format}, all scales");
        compare(&y, &weights, &eight_bits(&x.storage), HALVED, 1, &what);
    }
}

/// A block of activations that is not finite spoils its vector; gate and up are multiplied at once.
#[test]
fn gate_and_up_as_halves() {
    let device = device();
    if device.properties().arch.generation().matrix().is_none() {
        return;
    }
    let mut rng = Rng::new(26);
    for (format, cols) in HALVES {
        let (rows, columns) = (45, 11);
        let [gate, up] = [0, 16].map(|at| Weights::at(&device, format, (rows, cols), at, &mut rng));
        let mut x = rng.vec::<f32>(columns * cols, -1.0, 1.0);
        x[3 * cols + 77] = f32::NAN;
        let x = HostTensor::contiguous(x, &[columns, cols]);
        let buffer = x.upload(&device);
        let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
        let (one, other) = (gate.matrix(), up.matrix());
        let y = gated_halves(
            &device,
            &one,
            &other,
            &quantized,
            Activation::Silu,
            DType::F32,
        );
        let y = download::<f32>(&device, &y.unwrap());
        let seen = eight_bits(&x.storage);
        let (gates, ups) = (product(&gate, &seen), product(&up, &seen));
        let (mut some, mut want) = (Vec::new(), Vec::new());
        for (i, v) in y.into_iter().enumerate() {
            let is_spoilt = i / rows == 3;
            assert_eq!(v.is_nan(), is_spoilt, "{format}: result {i} is {v}");
            if !is_spoilt {
                some.push(v);
                want.push(silu(gates[i]) * ups[i]);
            }
        }
        assert_close::<f32>(&some, &want, 4.0 * HALVED, &format!("gated, {format}"));
    }
}

#[test]
fn as_halves_only_what_is_aligned() {
    let device = device();
    let mut rng = Rng::new(25);
    let none = Epilogue::default();
    for (format, cols, offset) in [
        (Format::Q4K, 256, 8),
        (Format::Q6K, 256, 0),
        (Format::Q8_0, 256, 0),
    ] {
        let weights = Weights::at(&device, format, (2, cols), offset, &mut rng);
        let x = HostTensor::contiguous(rng.vec::<f32>(9 * cols, -1.0, 1.0), &[9, cols]);
        let buffer = x.upload(&device);
        let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
        let y = halves(&device, &weights.matrix(), &quantized, &none, DType::F32);
        assert!(matches!(y, Err(Error::InvalidArgument { .. })), "{format}");
    }
}
