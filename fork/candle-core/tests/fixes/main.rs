//! Each fault of the published crate that `patches/` mend; the published crate fails all of these tests but the last,
//! which is what a fix must keep.

mod conv2d;
mod edges;
mod grads;
mod load;
mod reduce;

use std::io::Cursor;

use candle_core::quantized::{ggml_file, gguf_file, GgmlDType};
use candle_core::{safetensors, DType, Device, Module, Result, Tensor, Var};
use float8::F8E4M3;

const CPU: Device = Device::Cpu;

#[test]
fn f8e4m3_as_f64() -> Result<()> {
    let t = Tensor::new(&[F8E4M3::from_f32(1.5), F8E4M3::from_f32(-448.)], &CPU)?;
    assert_eq!(t.to_dtype(DType::F64)?.to_vec1::<f64>()?, [1.5, -448.]);
    Ok(())
}

/// [2, 3, 4] times one [4, 5] for both batches, where the batches lie transposed in memory.
#[test]
fn products_with_one_right_hand_side() -> Result<()> {
    let lhs = Tensor::arange(0f32, 24., &CPU)?.reshape((2, 4, 3))?.t()?;
    let rhs = Tensor::arange(0f32, 20., &CPU)?.reshape((4, 5))?;
    let got = lhs.matmul(&rhs.broadcast_as((2, 4, 5))?)?;
    for batch in 0..2 {
        let want = lhs.get(batch)?.contiguous()?.matmul(&rhs)?;
        assert_eq!(got.get(batch)?.to_vec2::<f32>()?, want.to_vec2::<f32>()?);
    }
    Ok(())
}

#[test]
fn conv_transpose1d_of_two_sequences() -> Result<()> {
    let x = Tensor::arange(0f32, 24., &CPU)?.reshape((2, 3, 4))?;
    let kernel = Tensor::arange(0f32, 12., &CPU)?.reshape((3, 2, 2))?;
    let both = x.conv_transpose1d(&kernel, 0, 0, 1, 1, 1)?;
    for i in 0..2 {
        let one = x
            .narrow(0, i, 1)?
            .contiguous()?
            .conv_transpose1d(&kernel, 0, 0, 1, 1, 1)?;
        assert_eq!(
            both.narrow(0, i, 1)?.to_vec3::<f32>()?,
            one.to_vec3::<f32>()?
        );
    }
    Ok(())
}

#[test]
fn conv1d_with_a_kernel_that_is_a_view() -> Result<()> {
    let x = Tensor::arange(0f32, 30., &CPU)?.reshape((2, 3, 5))?;
    let kernel = Tensor::arange(0f32, 36., &CPU)?
        .reshape((3, 3, 4))?
        .narrow(2, 1, 2)?;
    let got = x.conv1d(&kernel, 0, 1, 1, 1)?;
    let want = x.conv1d(&kernel.contiguous()?, 0, 1, 1, 1)?;
    assert_eq!(got.to_vec3::<f32>()?, want.to_vec3::<f32>()?);
    Ok(())
}

#[test]
fn gather_with_fewer_ids() -> Result<()> {
    let t = Tensor::arange(0u32, 24, &CPU)?.reshape((2, 3, 4))?;
    let ids = Tensor::new(&[[[1u32, 0], [0, 2]]], &CPU)?;
    assert_eq!(t.gather(&ids, 1)?.to_vec3::<u32>()?, [[[4, 1], [0, 9]]]);
    // Rows 0 and 1 of both planes, of which the ids have fewer than the source.
    let ids = Tensor::new(&[[[1u32], [0]], [[2], [3]]], &CPU)?;
    assert_eq!(
        t.gather(&ids, 2)?.to_vec3::<u32>()?,
        [[[1], [4]], [[14], [19]]]
    );
    Ok(())
}

#[test]
fn avg_pool2d_of_integers() -> Result<()> {
    let pooled = Tensor::new(&[[[[1i64, 2, 5], [4, 4, -9], [0, -1, -1]]]], &CPU)?
        .avg_pool2d_with_stride((2, 2), (1, 1))?;
    assert_eq!(pooled.flatten_all()?.to_vec1::<i64>()?, [2, 0, 1, -1]);
    let pooled = Tensor::full(255u8, (1, 1, 4, 4), &CPU)?.avg_pool2d(4)?;
    assert_eq!(pooled.flatten_all()?.to_vec1::<u8>()?, [255]);
    Ok(())
}

#[test]
fn bilinear_resizing_of_a_view_to_its_own_size() -> Result<()> {
    let view = Tensor::arange(0f32, 16., &CPU)?
        .reshape((1, 1, 4, 4))?
        .narrow(3, 1, 2)?;
    let same = view.upsample_bilinear2d(4, 2, false)?;
    assert_eq!(
        same.flatten_all()?.to_vec1::<f32>()?,
        [1., 2., 5., 6., 9., 10., 13., 14.]
    );
    Ok(())
}

#[test]
fn functions_of_integers() -> Result<()> {
    let t = Tensor::new(&[-3i32, 0, 5], &CPU)?;
    type Function = fn(&Tensor) -> Result<Tensor>;
    let floats_only: [(&str, Function); 4] = [
        ("exp", Tensor::exp),
        ("sqr", Tensor::sqr),
        ("gelu", Tensor::gelu),
        ("silu", Tensor::silu),
    ];
    for (name, function) in floats_only {
        let error = function(&t).expect_err(name).to_string();
        assert!(error.contains(name) && error.contains("I32"), "{error}");
    }
    assert_eq!(t.abs()?.to_vec1::<i32>()?, [3, 0, 5]);
    assert_eq!(t.relu()?.to_vec1::<i32>()?, [0, 0, 5]);
    assert_eq!(t.sign()?.to_vec1::<i32>()?, [-1, 0, 1]);
    Ok(())
}

#[test]
fn sorting_nan_and_nothing() -> Result<()> {
    let values: Vec<f32> = (0..1000u32)
        .map(|i| {
            if i % 3 == 0 {
                f32::NAN
            } else {
                (i * 7919 % 1000) as f32
            }
        })
        .collect();
    let numbers = values.iter().filter(|v| !v.is_nan()).count();
    let t = Tensor::new(values, &CPU)?;
    let up = t.sort_last_dim(true)?.0.to_vec1::<f32>()?;
    assert!(up[..numbers].is_sorted() && up[numbers..].iter().all(|v| v.is_nan()));
    let mut down = t.sort_last_dim(false)?.0.to_vec1::<f32>()?;
    down.reverse();
    assert_eq!(down[..numbers], up[..numbers]);
    let nothing = Tensor::zeros((3, 0), DType::F32, &CPU)?;
    assert_eq!(nothing.arg_sort_last_dim(true)?.dims(), [3, 0]);
    Ok(())
}

const SMALL_FLOATS: [(DType, usize); 4] = [
    (DType::F4, 4),
    (DType::F6E2M3, 6),
    (DType::F6E3M2, 6),
    (DType::F8E8M0, 8),
];

#[test]
fn zeros_and_ones_of_small_floats_are_errors() -> Result<()> {
    for (dtype, bits) in SMALL_FLOATS {
        let t = Tensor::from_raw_buffer(&vec![0x5a; bits], dtype, &[2, 4], &CPU)?;
        for outcome in [t.zero_set(), t.one_set(), t.ones_like().map(|_| ())] {
            let error = outcome.expect_err("no such numbers").to_string();
            assert!(error.contains(&format!("{dtype:?}")), "{error}");
        }
    }
    Ok(())
}

#[test]
fn small_floats_are_not_rearranged() -> Result<()> {
    for (dtype, bits) in SMALL_FLOATS.into_iter().filter(|(_, bits)| *bits < 8) {
        let t = Tensor::from_raw_buffer(&vec![0x5a; 2 * bits], dtype, &[4, 4], &CPU)?;
        let row = Tensor::from_raw_buffer(&vec![0; bits], dtype, &[2, 4], &CPU)?;
        let error = t.slice_set(&row, 0, 0).expect_err("no bytes").to_string();
        assert!(error.contains(&format!("{dtype:?}")), "{error}");
    }
    Ok(())
}

#[test]
fn small_floats_are_saved() -> Result<()> {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("small.safetensors");
    for (dtype, bits) in SMALL_FLOATS {
        let bytes: Vec<u8> = (0..2 * bits as u8).map(|i| i.wrapping_mul(37)).collect();
        let t = Tensor::from_raw_buffer(&bytes, dtype, &[4, 4], &CPU)?;
        t.save_safetensors("t", &path)?;
        let file = std::fs::read(&path)?;
        assert!(file.ends_with(&bytes));
        let back = safetensors::load(&path, &CPU)?.remove("t").expect("saved");
        assert_eq!((back.dtype(), back.dims()), (dtype, &[4, 4][..]));
        // Rows 2 and 3, which are the second half of the bytes.
        let half = t.narrow(0, 2, 2)?;
        half.save_safetensors("t", &path)?;
        assert!(std::fs::read(&path)?.ends_with(&bytes[bits..]));
        let error = t.narrow(1, 0, 2)?.save_safetensors("t", &path);
        assert!(error.expect_err("has gaps").to_string().contains("gaps"));
    }
    Ok(())
}

/// A GGUF file: version 3, these metadata entries (key, type, little-endian value) and one tensor `t` of zeros.
fn gguf(metadata: &[(&str, u32, &[u8])], format: u32, dims: &[u64], data: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    let string = |s: &str, file: &mut Vec<u8>| {
        file.extend((s.len() as u64).to_le_bytes());
        file.extend(s.as_bytes());
    };
    file.extend((metadata.len() as u64).to_le_bytes());
    for (key, kind, value) in metadata {
        string(key, &mut file);
        file.extend(kind.to_le_bytes());
        file.extend(*value);
    }
    string("t", &mut file);
    file.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| file.extend(d.to_le_bytes()));
    file.extend(format.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.resize(file.len().next_multiple_of(64), 0);
    file.extend(data);
    file
}

const F32: u32 = 0;
const GGUF_U32: u32 = 4;
const GGUF_U64: u32 = 10;

fn read_tensor(file: Vec<u8>) -> Result<Tensor> {
    let mut file = Cursor::new(file);
    let content = gguf_file::Content::read(&mut file)?;
    content.tensor(&mut file, "t", &CPU)?.dequantize(&CPU)
}

#[test]
fn gguf_alignment() -> Result<()> {
    let data: Vec<u8> = [1f32, 2.].iter().flat_map(|v| v.to_le_bytes()).collect();
    let aligned = |kind, value: &[u8]| {
        let file = gguf(&[("general.alignment", kind, value)], F32, &[2], &data);
        read_tensor(file)
    };
    assert_eq!(
        aligned(GGUF_U32, &[64, 0, 0, 0])?.to_vec1::<f32>()?,
        [1., 2.]
    );
    // The header ends in the first half of a block of 64, so that with 32 the tensor would begin too early.
    assert_eq!(
        aligned(GGUF_U64, &64u64.to_le_bytes())?.to_vec1::<f32>()?,
        [1., 2.]
    );
    let bad: [(u32, &[u8]); 4] = [
        (GGUF_U32, &[0; 4]),
        (11, &(-64i64).to_le_bytes()),
        (5, &(-32i32).to_le_bytes()),
        (6, &32f32.to_le_bytes()),
    ];
    for (kind, value) in bad {
        let error = aligned(kind, value).expect_err("no alignment").to_string();
        assert!(error.contains("general.alignment"), "{error}");
    }
    Ok(())
}

#[test]
fn gguf_sizes() {
    for dims in [
        [1 << 32, 1 << 32],
        [1 << 63, 2],
        [1 << 62, 1],
        [u64::MAX, 3],
    ] {
        let error = read_tensor(gguf(&[], F32, &dims, &[]))
            .expect_err("too large")
            .to_string();
        assert!(
            error.contains("'t'") && error.contains("counted"),
            "{error}"
        );
    }
    let error = read_tensor(gguf(&[], F32, &[1 << 40], &[0; 64]))
        .expect_err("not there")
        .to_string();
    assert!(error.contains("remaining"), "{error}");
    let error = read_tensor(gguf(&[], 999, &[1], &[0; 64]))
        .expect_err("no format")
        .to_string();
    assert!(error.contains("999"), "{error}");
}

/// The header of a GGML file of version `ggjt` 3 with `words` words.
fn ggml(words: u32) -> Vec<u8> {
    let header = [0x67676a74u32, 3, words, 1, 1, 1, 1, 1, 0];
    header.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Memory that these claim would be tens of gigabytes each.
#[test]
fn ggml_sizes() {
    let words = |file: &[u32]| {
        file.iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let tensor = |dims: &[u32]| {
        let mut file = ggml(0);
        file.extend(words(&[dims.len() as u32, 0, 0]));
        file.extend(words(dims));
        file
    };
    let long_word = [ggml(1), words(&[u32::MAX - 1])].concat();
    let many_dims = [ggml(0), words(&[u32::MAX, 0, 0])].concat();
    let hostile = [
        ggml(u32::MAX),
        long_word,
        many_dims,
        tensor(&[u32::MAX, u32::MAX, 8]),
        tensor(&[u32::MAX, u32::MAX]),
        tensor(&[u32::MAX]),
    ];
    for file in hostile {
        assert!(ggml_file::Content::read(&mut Cursor::new(file), &CPU).is_err());
    }
}

#[test]
fn blocks_from_any_bytes() -> Result<()> {
    let empty = read_tensor(gguf(&[], F32, &[0], &[]))?;
    assert_eq!(empty.dims(), [0]);
    let bytes: Vec<u8> = [[0u8; 4], 1f32.to_le_bytes(), 2f32.to_le_bytes()].concat();
    for start in 1..5 {
        let from =
            |bytes: &[u8]| ggml_file::qtensor_from_ggml(GgmlDType::F32, bytes, vec![2], &CPU);
        let mut moved = vec![0; start];
        moved.extend(&bytes[4..]);
        assert_eq!(
            from(&moved[start..])?.dequantize(&CPU)?.to_vec1::<f32>()?,
            [1., 2.]
        );
        let error = from(&moved[start + 1..]).expect_err("too few").to_string();
        assert!(error.contains("8 bytes"), "{error}");
    }
    Ok(())
}

fn grad(x: &Var, y: &Tensor) -> Result<Tensor> {
    Ok(y.backward()?.get(x).expect("a gradient").clone())
}

#[test]
fn gradients_of_scatter_and_scatter_add() -> Result<()> {
    let x = Var::new(&[[1f32, 2., 3.], [4., 5., 6.]], &CPU)?;
    let ids = Tensor::new(&[[0u32], [2]], &CPU)?;
    let src = Var::new(&[[10f32], [20.]], &CPU)?;
    let weights = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &CPU)?;
    let y = (x.scatter(&ids, &src, 1)? * &weights)?;
    assert_eq!(
        grad(&x, &y)?.to_vec2::<f32>()?,
        [[0., 2., 3.], [4., 5., 0.]]
    );
    assert_eq!(grad(&src, &y)?.to_vec2::<f32>()?, [[1.], [6.]]);
    let y = (x.scatter_add(&ids, &src, 1)? * &weights)?;
    assert_eq!(grad(&x, &y)?.to_vec2::<f32>()?, weights.to_vec2::<f32>()?);
    assert_eq!(grad(&src, &y)?.to_vec2::<f32>()?, [[1.], [6.]]);
    Ok(())
}

#[test]
fn gradients_of_nearest_neighbour_resizing_add_up() -> Result<()> {
    let x = Var::new(&[[[[1f32, 2.], [3., 4.]]]], &CPU)?;
    let y = (x.upsample_nearest2d(4, 4)?.sum_all()? + (x.as_tensor() * 3.)?.sum_all()?)?;
    assert_eq!(grad(&x, &y)?.flatten_all()?.to_vec1::<f32>()?, [7.; 4]);
    let x = Var::new(&[[[1f32, 2.]]], &CPU)?;
    let y = (x.upsample_nearest1d(6)?.sum_all()? + (x.as_tensor() * 3.)?.sum_all()?)?;
    assert_eq!(grad(&x, &y)?.flatten_all()?.to_vec1::<f32>()?, [6.; 2]);
    Ok(())
}

/// A convolution is linear in its input, so the gradient times any change of the input is what that change makes of the
/// result.
#[test]
fn gradients_of_conv2d_with_remainders() -> Result<()> {
    let count = |shape: &[usize], step: f64| -> Result<Tensor> {
        let elements = shape.iter().product::<usize>() as f32;
        ((Tensor::arange(0f32, elements, &CPU)? * step)?.sin()?).reshape(shape)
    };
    for (height, width, padding) in [(5, 6, 0), (6, 5, 0), (8, 5, 1), (5, 5, 0)] {
        let shape = [1, 2, height, width];
        let x = Var::from_tensor(&count(&shape, 0.7)?)?;
        let kernel = count(&[3, 2, 3, 3], 1.3)?;
        let conv = |x: &Tensor| x.conv2d(&kernel, padding, 2, 1, 1);
        let y = conv(&x)?;
        let weights = count(y.dims(), 0.9)?;
        let change = count(&shape, 0.4)?;
        let scalar = |t: Tensor| t.sum_all()?.to_scalar::<f32>();
        let got = scalar((grad(&x, &(y * &weights)?)? * &change)?)?;
        let want = scalar((conv(&change)? * &weights)?)?;
        assert!((got - want).abs() < 1e-4, "{height}x{width}: {got} {want}");
    }
    Ok(())
}

/// 3x5 pixels with windows of 2x2: the last row and column are in none.
#[test]
fn gradients_of_pooling() -> Result<()> {
    let pixels: [f32; 15] = [1., 9., 2., 2., 9., 3., 4., 0., 1., 9., 9., 9., 9., 9., 9.];
    let x = Var::from_tensor(&Tensor::new(&pixels, &CPU)?.reshape((1, 1, 3, 5))?)?;
    let weights = Tensor::new(&[8f32, 16.], &CPU)?.reshape((1, 1, 1, 2))?;
    let got = grad(&x, &(x.max_pool2d(2)? * &weights)?)?;
    // The second window has two maxima.
    let want = [0., 8., 8., 8., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.];
    assert_eq!(got.flatten_all()?.to_vec1::<f32>()?, want);
    let got = grad(&x, &(x.avg_pool2d(2)? * &weights)?)?;
    let want = [2., 2., 4., 4., 0., 2., 2., 4., 4., 0., 0., 0., 0., 0., 0.];
    assert_eq!(got.flatten_all()?.to_vec1::<f32>()?, want);
    Ok(())
}

/// The mended matmul still serves a quantized matrix and a batch that can be folded.
#[test]
fn folded_batches_stay_right() -> Result<()> {
    let lhs = Tensor::arange(0f32, 24., &CPU)?.reshape((2, 3, 4))?;
    let rhs = Tensor::arange(0f32, 20., &CPU)?.reshape((5, 4))?;
    let linear = candle_core::quantized::QMatMul::Tensor(rhs.clone());
    let want = lhs.reshape((6, 4))?.matmul(&rhs.t()?)?.reshape((2, 3, 5))?;
    assert_eq!(
        linear.forward(&lhs)?.to_vec3::<f32>()?,
        want.to_vec3::<f32>()?
    );
    Ok(())
}
