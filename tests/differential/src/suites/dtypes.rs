//! Every operation with every dtype of candle's: what the CPU back end does, `Device::Rocm` does, with the same
//! outcome; what it does not do is an error that names the dtype. Nothing panics.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;

use crate::{error_of, name, to_f64, values, Context, Report, Suite, DTYPES};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, IndexOp, Result, Storage, Tensor, D};
use candle_nn::{loss, ops, rotary_emb};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("dtypes", every_operation_in_every_dtype),
    Suite::unlisted("sdpa-dtypes", sdpa_in_every_dtype),
    Suite::unlisted("small-floats", small_floats_are_moved_and_saved),
    Suite::unlisted("reductions-of-nothing", reductions_of_nothing),
];

/// Formats that candle stores and does not compute with, and the bits of their elements.
const SMALL_FLOATS: [(DType, usize); 4] = [
    (DType::F4, 4),
    (DType::F6E2M3, 6),
    (DType::F6E3M2, 6),
    (DType::F8E8M0, 8),
];

/// A file of this process, removed with this value.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str) -> Self {
        let name = format!("candle-rocm-{}-{name}", std::process::id());
        TemporaryFile(std::env::temp_dir().join(name))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // It may never have been written.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes an operation's inputs on one device and in one dtype.
struct Make<'a> {
    device: &'a Device,
    dtype: DType,
}

impl Make<'_> {
    /// Small whole numbers but 0, that every dtype holds; any bytes for the formats that are only stored.
    fn t(&self, dims: &[usize]) -> Result<Tensor> {
        self.numbered(dims, dims.len() as u64)
    }

    fn numbered(&self, dims: &[usize], seed: u64) -> Result<Tensor> {
        let count = dims.iter().product();
        if let Some((dtype, bits)) = SMALL_FLOATS.into_iter().find(|(d, _)| *d == self.dtype) {
            let bytes: Vec<u8> = (0..count * bits / 8).map(|i| (37 * i + 11) as u8).collect();
            return Tensor::from_raw_buffer(&bytes, dtype, dims, self.device);
        }
        let numbers: Vec<f64> = values(count, seed, 1., 4.99)
            .iter()
            .map(|v| v.floor())
            .collect();
        Tensor::from_vec(numbers, dims, &Device::Cpu)?
            .to_dtype(self.dtype)?
            .to_device(self.device)
    }

    fn ids(&self, dims: &[usize], below: u32) -> Result<Tensor> {
        let count = dims.iter().product::<usize>() as u32;
        let ids: Vec<u32> = (0..count).map(|i| i * 7 % below).collect();
        Tensor::from_vec(ids, dims, self.device)
    }

    /// A sequence and tables for rotary embeddings.
    fn rope(&self, rope: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
        rope(
            &self.t(&[2, 4, 4, 8])?,
            &self.t(&[5, 4])?,
            &self.numbered(&[5, 4], 9)?,
        )
    }
}

type Op = fn(&Make) -> Result<Tensor>;

/// Operations of one tensor `[4, 8]`.
type Unary = fn(&Tensor) -> Result<Tensor>;
const UNARY: &[(&str, Unary)] = &[
    ("exp", Tensor::exp),
    ("log", Tensor::log),
    ("sin", Tensor::sin),
    ("cos", Tensor::cos),
    ("tanh", Tensor::tanh),
    ("abs", Tensor::abs),
    ("neg", Tensor::neg),
    ("recip", Tensor::recip),
    ("sqr", Tensor::sqr),
    ("sqrt", Tensor::sqrt),
    ("gelu", Tensor::gelu),
    ("gelu_erf", Tensor::gelu_erf),
    ("erf", Tensor::erf),
    ("relu", Tensor::relu),
    ("silu", Tensor::silu),
    ("floor", Tensor::floor),
    ("ceil", Tensor::ceil),
    ("round", Tensor::round),
    ("round_to", |t| t.round_to(1)),
    ("sign", Tensor::sign),
    ("powf", |t| t.powf(2.)),
    ("elu", |t| t.elu(0.5)),
    ("affine", |t| t.affine(2., 1.)),
    ("sum", |t| t.sum(1)),
    ("sum_all", Tensor::sum_all),
    ("mean", |t| t.mean(0)),
    ("mean_all", Tensor::mean_all),
    ("var", |t| t.var(1)),
    ("min", |t| t.min(0)),
    ("min_all", Tensor::min_all),
    ("max", |t| t.max(1)),
    ("max_all", Tensor::max_all),
    ("argmin", |t| t.argmin(1)),
    ("argmax", |t| t.argmax(0)),
    ("cumsum", |t| t.cumsum(1)),
    ("log_sum_exp", |t| t.log_sum_exp(1)),
    ("norm", Tensor::norm),
    ("clamp", |t| t.clamp(&t.zeros_like()?, &t.ones_like()?)),
    ("argsort", |t| t.arg_sort_last_dim(true)),
    ("sort", |t| Ok(t.sort_last_dim(false)?.0)),
    ("copy", Tensor::copy),
    ("contiguous", |t| t.t()?.contiguous()),
    ("force_contiguous", |t| t.i(1..3)?.force_contiguous()),
    ("reshape", |t| t.t()?.reshape((4, 8))),
    ("narrow", |t| t.narrow(0, 2, 2)),
    ("transpose", |t| t.t()),
    ("broadcast_as", |t| t.broadcast_as((2, 4, 8))),
    ("flip", |t| t.flip(&[0, 1])),
    ("roll", |t| t.roll(1, 0)),
    ("repeat", |t| t.repeat((2, 1))),
    ("pad_with_zeros", |t| t.pad_with_zeros(1, 1, 2)),
    ("pad_with_same", |t| t.pad_with_same(0, 1, 1)),
    ("chunk", |t| Ok(t.chunk(2, 1)?.remove(1))),
    ("cat", |t| Tensor::cat(&[t, t], 0)),
    ("cat of views", |t| Tensor::cat(&[t.t()?, t.t()?], 1)),
    ("stack", |t| Tensor::stack(&[t, t], 1)),
    ("to_device", |t| {
        t.to_device(&Device::Cpu)?.to_device(t.device())
    }),
    ("zeros_like", Tensor::zeros_like),
    ("ones_like", Tensor::ones_like),
    ("zero_set", |t| {
        let t = t.copy()?;
        t.zero_set()?;
        Ok(t)
    }),
    ("one_set", |t| {
        let t = t.copy()?;
        t.one_set()?;
        Ok(t)
    }),
    ("dropout", |t| ops::dropout(t, 0.5)?.zeros_like()),
    ("rand", |t| t.rand_like(0., 1.)),
    ("randn", |t| t.randn_like(0., 1.)),
    ("sigmoid", ops::sigmoid),
    ("hard_sigmoid", ops::hard_sigmoid),
    ("mish", ops::mish),
    ("leaky_relu", |t| ops::leaky_relu(t, 0.5)),
    ("selu", |t| ops::selu(t, 1.5, 1.)),
    ("swiglu", ops::swiglu),
    ("softmax", |t| ops::softmax(t, 0)),
    ("log_softmax", |t| ops::log_softmax(t, 1)),
    ("softmax_last_dim", ops::softmax_last_dim),
    ("save", |t| {
        let place = format!("{:?}-{:?}.safetensors", t.device().location(), t.dtype());
        let file = TemporaryFile::new(&place);
        t.save_safetensors("t", &file.0)?;
        let mut saved = candle_core::safetensors::load(&file.0, t.device())?;
        Ok(saved.remove("t").expect("it was saved"))
    }),
    ("quantize", |t| {
        let t = t.flatten_all()?.reshape((1, 32))?;
        QTensor::quantize(&t, GgmlDType::Q8_0)?.dequantize(t.device())
    }),
];

/// Operations of several tensors, or of a tensor of another shape.
const OTHERS: &[(&str, Op)] = &[
    ("add", |m| m.t(&[3, 5])?.add(&m.numbered(&[3, 5], 7)?)),
    ("sub", |m| {
        m.numbered(&[3, 5], 7)?.sub(&m.t(&[3, 5])?.ones_like()?)
    }),
    ("mul", |m| m.t(&[3, 5])?.mul(&m.numbered(&[3, 5], 7)?)),
    ("div", |m| m.t(&[3, 5])?.div(&m.numbered(&[3, 5], 7)?)),
    ("minimum", |m| {
        m.t(&[3, 5])?.minimum(&m.numbered(&[3, 5], 7)?)
    }),
    ("maximum", |m| {
        m.t(&[3, 5])?.maximum(&m.numbered(&[3, 5], 7)?)
    }),
    ("broadcast_add", |m| {
        m.t(&[3, 5])?.broadcast_add(&m.t(&[5])?)
    }),
    ("pow", |m| {
        m.t(&[3, 5])?.pow(&m.numbered(&[3, 5], 7)?.ones_like()?)
    }),
    ("eq", |m| m.t(&[3, 5])?.eq(&m.numbered(&[3, 5], 7)?)),
    ("ne", |m| m.t(&[3, 5])?.ne(&m.numbered(&[3, 5], 7)?)),
    ("lt", |m| m.t(&[3, 5])?.lt(&m.numbered(&[3, 5], 7)?)),
    ("le", |m| m.t(&[3, 5])?.le(&m.numbered(&[3, 5], 7)?)),
    ("gt", |m| m.t(&[3, 5])?.gt(&m.numbered(&[3, 5], 7)?)),
    ("ge", |m| m.t(&[3, 5])?.ge(&m.numbered(&[3, 5], 7)?)),
    ("eq scalar", |m| m.t(&[3, 5])?.eq(2f64)),
    ("where_cond", |m| {
        m.ids(&[3, 5], 2)?
            .where_cond(&m.t(&[3, 5])?, &m.numbered(&[3, 5], 7)?)
    }),
    ("condition", |m| {
        let ones = m.ids(&[3, 5], 3)?;
        m.t(&[3, 5])?.where_cond(&ones, &ones.zeros_like()?)
    }),
    ("matmul", |m| m.t(&[3, 4])?.matmul(&m.t(&[4, 2])?)),
    ("batched matmul", |m| {
        m.t(&[2, 3, 4])?.matmul(&m.t(&[2, 2, 4])?.t()?)
    }),
    ("broadcast_matmul", |m| {
        m.t(&[2, 3, 4])?.broadcast_matmul(&m.t(&[4, 2])?)
    }),
    ("mv", |m| m.t(&[3, 4])?.mv(&m.t(&[4])?)),
    ("dot", |m| m.t(&[4])?.dot(&m.numbered(&[4], 7)?)),
    ("conv1d", |m| {
        m.t(&[2, 4, 6])?.conv1d(&m.t(&[2, 4, 3])?, 1, 1, 1, 1)
    }),
    ("conv2d", |m| {
        m.t(&[1, 2, 5, 4])?.conv2d(&m.t(&[2, 2, 2, 2])?, 1, 1, 1, 1)
    }),
    ("conv_transpose1d", |m| {
        m.t(&[2, 2, 3])?
            .conv_transpose1d(&m.t(&[2, 2, 2])?, 0, 0, 1, 1, 1)
    }),
    ("conv_transpose1d", |m| {
        m.t(&[2, 2, 3])?
            .conv_transpose1d(&m.t(&[2, 2, 2])?, 1, 1, 2, 2, 1)
    }),
    ("conv_transpose2d", |m| {
        m.t(&[1, 2, 2, 3])?
            .conv_transpose2d(&m.t(&[2, 2, 2, 2])?, 1, 1, 2, 1)
    }),
    ("avg_pool2d", |m| m.t(&[1, 2, 4, 5])?.avg_pool2d(2)),
    ("max_pool2d", |m| m.t(&[1, 2, 4, 5])?.max_pool2d((2, 1))),
    ("upsample_nearest1d", |m| {
        m.t(&[1, 2, 4])?.upsample_nearest1d(7)
    }),
    ("upsample_nearest2d", |m| {
        m.t(&[1, 2, 4, 2])?.upsample_nearest2d(7, 5)
    }),
    ("upsample_bilinear2d", |m| {
        m.t(&[1, 2, 4, 2])?.upsample_bilinear2d(7, 5, true)
    }),
    ("gather", |m| m.t(&[3, 4])?.gather(&m.ids(&[3, 2], 4)?, 1)),
    ("scatter", |m| {
        m.t(&[3, 4])?
            .scatter(&m.ids(&[3, 2], 4)?, &m.t(&[3, 2])?, 1)
    }),
    ("scatter_add", |m| {
        m.t(&[3, 4])?
            .scatter_add(&m.ids(&[3, 2], 4)?, &m.t(&[3, 2])?, 1)
    }),
    ("index_add", |m| {
        m.t(&[3, 4])?.index_add(&m.ids(&[2], 3)?, &m.t(&[2, 4])?, 0)
    }),
    ("index_select", |m| {
        m.t(&[3, 4])?.index_select(&m.ids(&[5], 3)?, 0)
    }),
    ("embedding", |m| m.t(&[3, 4])?.embedding(&m.ids(&[5], 3)?)),
    ("i", |m| m.t(&[3, 4])?.i(&m.ids(&[2], 3)?)),
    ("slice_set", |m| {
        let t = m.t(&[4, 8])?.copy()?;
        t.slice_set(&m.t(&[2, 8])?, 0, 1)?;
        Ok(t)
    }),
    ("slice_scatter", |m| {
        m.t(&[4, 8])?.slice_scatter(&m.t(&[2, 8])?, 0, 1)
    }),
    ("slice_assign", |m| {
        m.t(&[4, 8])?.slice_assign(&[1..3, 0..8], &m.t(&[2, 8])?)
    }),
    ("zeros", |m| Tensor::zeros((2, 4), m.dtype, m.device)),
    ("ones", |m| Tensor::ones((2, 4), m.dtype, m.device)),
    ("full", |m| {
        Tensor::full(2f64, (2, 4), m.device)?.to_dtype(m.dtype)
    }),
    ("eye", |m| Tensor::eye(3, m.dtype, m.device)),
    ("tril2", |m| Tensor::tril2(3, m.dtype, m.device)),
    ("triu2", |m| Tensor::triu2(3, m.dtype, m.device)),
    ("rms_norm", |m| {
        ops::rms_norm(&m.t(&[3, 8])?, &m.t(&[8])?, 1e-5)
    }),
    ("rms_norm_slow", |m| {
        ops::rms_norm_slow(&m.t(&[3, 8])?, &m.t(&[8])?, 1e-5)
    }),
    ("layer_norm", |m| {
        ops::layer_norm(&m.t(&[3, 8])?, &m.t(&[8])?, &m.numbered(&[8], 9)?, 1e-5)
    }),
    ("layer_norm_slow", |m| {
        ops::layer_norm_slow(&m.t(&[3, 8])?, &m.t(&[8])?, &m.numbered(&[8], 9)?, 1e-5)
    }),
    ("rope", |m| m.rope(rotary_emb::rope)),
    ("rope_i", |m| m.rope(rotary_emb::rope_i)),
    ("rope_thd", |m| m.rope(rotary_emb::rope_thd)),
    ("rope_slow", |m| m.rope(rotary_emb::rope_slow)),
    ("rope_i_slow", |m| m.rope(rotary_emb::rope_i_slow)),
    ("pixel_shuffle", |m| {
        ops::pixel_shuffle(&m.t(&[1, 4, 2, 3])?, 2)
    }),
    ("pixel_unshuffle", |m| {
        ops::pixel_unshuffle(&m.t(&[1, 1, 4, 6])?, 2)
    }),
    ("replication_pad2d", |m| {
        ops::replication_pad2d(&m.t(&[1, 1, 4, 6])?, 1)
    }),
    ("nll", |m| loss::nll(&m.t(&[3, 4])?, &m.ids(&[3], 4)?)),
    ("cross_entropy", |m| {
        loss::cross_entropy(&m.t(&[3, 4])?, &m.ids(&[3], 4)?)
    }),
    ("mse", |m| {
        loss::mse(&m.t(&[3, 4])?, &m.numbered(&[3, 4], 9)?)
    }),
    ("huber", |m| {
        loss::huber(&m.t(&[3, 4])?, &m.numbered(&[3, 4], 9)?, 1.)
    }),
    ("binary_cross_entropy", |m| {
        loss::binary_cross_entropy_with_logit(&m.t(&[3, 4])?, &m.numbered(&[3, 4], 9)?)
    }),
    ("ids of index_select", |m| {
        ids(m, |t, ids| t.index_select(&ids.i(0)?, 1))
    }),
    ("ids of gather", |m| ids(m, |t, ids| t.gather(ids, 1))),
    ("ids of scatter", |m| {
        ids(m, |t, ids| {
            t.scatter(ids, &t.narrow(1, 0, 2)?.contiguous()?, 1)
        })
    }),
    ("ids of scatter_add", |m| {
        ids(m, |t, ids| {
            t.scatter_add(ids, &t.narrow(1, 0, 2)?.contiguous()?, 1)
        })
    }),
    ("ids of index_add", |m| {
        ids(m, |t, ids| {
            t.index_add(&ids.i(0)?, &t.narrow(1, 0, 2)?.contiguous()?, 1)
        })
    }),
];

/// `f` of `[2, 5]` numbers and `[2, 2]` ids of the dtype, which are distinct in a row.
fn ids(m: &Make, f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let numbers = Tensor::arange(0f32, 10., m.device)?.reshape((2, 5))?;
    let ids = match SMALL_FLOATS.iter().any(|(d, _)| *d == m.dtype) {
        true => m.t(&[2, 2])?,
        false => Tensor::new(&[[1u32, 4], [3, 0]], m.device)?.to_dtype(m.dtype)?,
    };
    f(&numbers, &ids)
}

/// These draw numbers, which differ from device to device; only shape and dtype are compared.
const RANDOM: [&str; 2] = ["rand", "randn"];

/// What an operation gave.
enum Outcome {
    Value(Tensor),
    Error(String),
    /// Integers overflowed, for which the CPU panics in debug builds only; devices wrap.
    Overflow,
    Panic(String),
}

fn run(op: impl Fn(&Make) -> Result<Tensor>, device: &Device, dtype: DType) -> Outcome {
    let finished = || op(&Make { device, dtype }).and_then(|t| Ok((stored(&t)?, t)));
    match catch_unwind(AssertUnwindSafe(finished)) {
        Ok(Ok((_, t))) => Outcome::Value(t),
        Ok(Err(error)) => Outcome::Error(error.to_string()),
        Err(payload) => {
            let message = match payload.downcast_ref::<String>() {
                Some(message) => message.as_str(),
                None => payload.downcast_ref::<&str>().unwrap_or(&"?"),
            };
            match dtype.is_int() && message.ends_with("with overflow") {
                true => Outcome::Overflow,
                false => Outcome::Panic(message.to_owned()),
            }
        }
    }
}

/// The tensor's storage on the CPU, as text; this waits for the device.
fn stored(t: &Tensor) -> Result<String> {
    let t = t.to_device(&Device::Cpu)?;
    let (storage, layout) = t.storage_and_layout();
    Ok(match &*storage {
        Storage::Cpu(storage) => format!("{storage:?} {:?}", layout.start_offset()),
        other => format!("{:?}", other.device()),
    })
}

fn difference(op: &str, got: &Tensor, want: &Tensor) -> Result<Option<String>> {
    if (got.dtype(), got.dims()) != (want.dtype(), want.dims()) {
        return Ok(Some(format!(
            "{:?} {:?} instead of {:?} {:?}",
            got.dtype(),
            got.dims(),
            want.dtype(),
            want.dims()
        )));
    }
    if RANDOM.contains(&op) {
        return Ok(None);
    }
    if SMALL_FLOATS.iter().any(|(d, _)| *d == got.dtype()) {
        let same = stored(got)? == stored(want)?;
        return Ok((!same).then(|| "other bytes".to_owned()));
    }
    // Accuracy is for the tests of each operation; the CPU rounds after every step.
    let limit = match got.dtype() {
        DType::F8E4M3 => 0.1,
        DType::F16 | DType::BF16 => 5e-3,
        DType::F32 | DType::F64 => 1e-7,
        _ => 0.,
    };
    Ok(match crate::nmse(&to_f64(got)?, &to_f64(want)?) {
        Err(difference) => Some(difference),
        Ok(error) if error > limit => Some(format!("NMSE {error:e} exceeds {limit:e}")),
        Ok(_) => None,
    })
}

/// Compares one operation; `None` if neither device has it for the dtype.
fn compare(
    op: &str,
    dtype: DType,
    f: impl Fn(&Make) -> Result<Tensor>,
    rocm: &Device,
) -> Option<Option<String>> {
    let (want, got) = (run(&f, &Device::Cpu, dtype), run(&f, rocm, dtype));
    match (got, want) {
        (Outcome::Panic(message), _) => Some(Some(format!("panics: {message}"))),
        (_, Outcome::Panic(message)) => Some(Some(format!("panics on the CPU: {message}"))),
        (Outcome::Overflow, _) => Some(Some("panics: overflow".into())),
        (Outcome::Value(got), Outcome::Value(want)) => {
            Some(difference(op, &got, &want).unwrap_or_else(|e| Some(e.to_string())))
        }
        (_, Outcome::Overflow) => None,
        // More than the CPU can do.
        (Outcome::Value(_), Outcome::Error(_)) => Some(None),
        (Outcome::Error(error), Outcome::Value(_)) => {
            Some(Some(format!("only on the CPU: {error}")))
        }
        (Outcome::Error(error), Outcome::Error(_)) => {
            let text = error.to_lowercase();
            let named = text.contains(dtype.as_str()) || dtype.is_int() && text.contains("integer");
            if text.contains("not implemented") || !named {
                return Some(Some(format!("the error does not name the dtype: {error}")));
            }
            None
        }
    }
}

fn every_operation_in_every_dtype(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    let small = SMALL_FLOATS.map(|(dtype, _)| dtype);
    for dtype in DTYPES.into_iter().chain(small) {
        for &(op, f) in UNARY {
            let f = |m: &Make| f(&m.t(&[4, 8])?);
            if let Some(failure) = compare(op, dtype, f, &rocm) {
                report.record(op, name(dtype), "in every dtype", failure);
            }
        }
        for &(op, f) in OTHERS {
            if let Some(failure) = compare(op, dtype, f, &rocm) {
                report.record(op, name(dtype), "in every dtype", failure);
            }
        }
        for to in DTYPES.into_iter().chain(small) {
            let f = |m: &Make| m.t(&[4, 8])?.to_dtype(to);
            let failure = compare("to_dtype", dtype, f, &rocm);
            if let Some(failure) = failure.filter(|failure| match failure {
                // Either dtype may be the one that the error names.
                Some(error) => !error.to_lowercase().contains(to.as_str()),
                None => true,
            }) {
                report.record("to_dtype", name(dtype), &format!("to {to:?}"), failure);
            }
        }
    }
    Ok(())
}

/// sdpa is of f16, bf16 and f32 on every device.
fn sdpa_in_every_dtype(context: &Context, _: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for dtype in DTYPES {
        let f = |m: &Make| {
            let x = |seed| m.numbered(&[1, 2, 3, 32], seed);
            ops::sdpa(&x(1)?, &x(2)?, &x(3)?, None, false, 0.2, 1.)
        };
        match run(f, &rocm, dtype) {
            Outcome::Value(t) => {
                ensure_eq!(t.dims(), [1, 2, 3, 32]);
            }
            Outcome::Error(error) => {
                let everywhere = [DType::F16, DType::BF16, DType::F32];
                ensure!(!everywhere.contains(&dtype), "{dtype:?}: {error}");
                ensure!(error.to_lowercase().contains(dtype.as_str()), "{error}");
            }
            Outcome::Overflow => candle_core::bail!("sdpa of {dtype:?}: overflow"),
            Outcome::Panic(message) => candle_core::bail!("sdpa of {dtype:?}: {message}"),
        }
    }
    Ok(())
}

/// What the formats that are only stored can do: be loaded, moved, viewed, copied as a whole, and saved; f8e8m0, whose
/// elements are bytes, can be rearranged, too, which the CPU cannot.
fn small_floats_are_moved_and_saved(context: &Context, _: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for (dtype, bits) in SMALL_FLOATS {
        let bytes: Vec<u8> = (0..4 * bits as u8).map(|i| i.wrapping_mul(53)).collect();
        let t = Tensor::from_raw_buffer(&bytes, dtype, &[4, 8], &rocm)?;
        ensure_eq!(
            stored(&t)?,
            stored(&Tensor::from_raw_buffer(
                &bytes,
                dtype,
                &[4, 8],
                &Device::Cpu
            )?)?
        );
        let other = context.another_stream()?;
        for moved in [
            t.to_device(&Device::Cpu)?.to_device(&rocm)?,
            t.to_device(&other)?,
            t.copy()?,
        ] {
            ensure_eq!(stored(&moved)?, stored(&t)?);
        }
        let file = TemporaryFile::new(&format!("rows-{dtype:?}"));
        t.narrow(0, 1, 2)?.save_safetensors("t", &file.0)?;
        ensure!(std::fs::read(&file.0)?.ends_with(&bytes[bits..3 * bits]));
        let rearranged = Tensor::cat(&[t.t()?, t.t()?], 0);
        if dtype == DType::F8E8M0 {
            let as_bytes = Tensor::from_raw_buffer(&bytes, DType::U8, &[4, 8], &Device::Cpu)?;
            let want = Tensor::cat(&[as_bytes.t()?, as_bytes.t()?], 0)?.contiguous()?;
            let want = Tensor::from_raw_buffer(
                &want.flatten_all()?.to_vec1::<u8>()?,
                dtype,
                &[16, 4],
                &rocm,
            )?;
            ensure_eq!(stored(&rearranged?.contiguous()?)?, stored(&want)?);
        } else {
            let error = error_of(rearranged, "a format without bytes of its own")?;
            ensure!(error.contains(&format!("{dtype:?}")), "{error}");
        }
    }
    Ok(())
}

/// `sum` of the last dimension, of a tensor without elements: the neutral element, as on the CPU; the others are errors
/// on both.
fn reductions_of_nothing(context: &Context, _: &mut Report) -> Result<()> {
    for device in [context.device.clone(), Device::Cpu] {
        for dtype in DTYPES {
            let nothing = Tensor::zeros((2, 0), dtype, &device)?;
            ensure_eq!(to_f64(&nothing.sum(D::Minus1)?)?, [0., 0.]);
            ensure!(nothing.max(D::Minus1).is_err() && nothing.argmin(D::Minus1).is_err());
        }
    }
    Ok(())
}
