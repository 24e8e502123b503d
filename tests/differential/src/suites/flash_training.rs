//! Gradients of flash attention and its dropout: on the CPU against differences of the textbook's values in f64, on
//! `Device::Rocm` against the CPU; and a transformer that is trained with fused operations alone on both.

use crate::{error_of, name, nmse, to_f64, values, Context, Report, Size, Suite};
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_nn::optim::{AdamW, Optimizer, ParamsAdamW};
use candle_nn::{fused, loss, Embedding, LayerNorm, Linear, Module, RmsNorm};
use candle_rocm_flash_attn as flash;

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::on_cpu("flash-derivatives", gradients_are_derivatives),
    Suite::listed("flash-gradients", gradients_are_those_of_the_cpu),
    Suite::unlisted("flash-dropout", dropout_is_what_its_seed_says),
    Suite::unlisted(
        "flash-transformer",
        a_transformer_learns_with_fused_operations,
    ),
];

const SCALE: f32 = 0.3;

/// A problem: sequences of one length, or behind each other.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Rows and keys of each sequence.
    lengths: &'static [(usize, usize)],
    packed: bool,
    heads: usize,
    kv_heads: usize,
    size: usize,
    left: Option<usize>,
    right: Option<usize>,
    alibi: bool,
    softcap: Option<f32>,
    dropout: f32,
}

const CASE: Case = Case {
    lengths: &[(5, 7), (5, 7)],
    packed: false,
    heads: 4,
    kv_heads: 2,
    size: 8,
    left: None,
    right: None,
    alibi: false,
    softcap: None,
    dropout: 0.,
};

/// Every option, in few elements.
const SMALL: [Case; 8] = [
    CASE,
    Case {
        right: Some(0),
        ..CASE
    },
    Case {
        left: Some(2),
        right: Some(1),
        kv_heads: 1,
        ..CASE
    },
    Case {
        alibi: true,
        kv_heads: 4,
        ..CASE
    },
    Case {
        softcap: Some(1.5),
        right: Some(0),
        ..CASE
    },
    Case {
        dropout: 0.3,
        ..CASE
    },
    Case {
        dropout: 0.4,
        right: Some(0),
        alibi: true,
        softcap: Some(2.),
        packed: true,
        lengths: &[(3, 5), (4, 2), (0, 3), (2, 0)],
        ..CASE
    },
    Case {
        lengths: &[(7, 4)],
        right: Some(0),
        ..CASE
    },
];

/// Several tiles of rows and keys, and slices of wide heads.
const LARGE: [Case; 9] = [
    Case {
        lengths: &[(70, 131)],
        right: Some(0),
        size: 64,
        ..CASE
    },
    Case {
        lengths: &[(70, 70), (70, 70)],
        size: 40,
        dropout: 0.2,
        ..CASE
    },
    Case {
        lengths: &[(130, 97)],
        left: Some(33),
        right: Some(5),
        size: 32,
        kv_heads: 1,
        ..CASE
    },
    Case {
        lengths: &[(33, 65)],
        size: 128,
        alibi: true,
        softcap: Some(2.),
        heads: 3,
        kv_heads: 1,
        ..CASE
    },
    Case {
        lengths: &[(9, 70)],
        size: 256,
        right: Some(0),
        heads: 2,
        kv_heads: 1,
        dropout: 0.1,
        ..CASE
    },
    Case {
        lengths: &[(5, 6)],
        size: 512,
        heads: 2,
        kv_heads: 2,
        dropout: 0.5,
        ..CASE
    },
    Case {
        lengths: &[(67, 67), (1, 1), (40, 90), (0, 5), (12, 0)],
        packed: true,
        size: 24,
        right: Some(0),
        ..CASE
    },
    Case {
        lengths: &[(20, 30), (64, 64)],
        packed: true,
        size: 48,
        left: Some(7),
        right: Some(2),
        dropout: 0.3,
        kv_heads: 4,
        ..CASE
    },
    Case {
        lengths: &[(1, 200)],
        size: 64,
        right: Some(0),
        ..CASE
    },
];

impl Case {
    const SEED: u64 = 0x1234_5678_9abc;

    fn shapes(&self) -> [Vec<usize>; 3] {
        let total = |of: fn(&(usize, usize)) -> usize| self.lengths.iter().map(of).sum::<usize>();
        let shape = |all: usize, heads: usize| match self.packed {
            true => vec![all, heads, self.size],
            false => {
                let batch = self.lengths.len();
                vec![batch, all / batch, heads, self.size]
            }
        };
        let keys = shape(total(|l| l.1), self.kv_heads);
        [shape(total(|l| l.0), self.heads), keys.clone(), keys]
    }

    fn slopes(&self) -> Vec<f32> {
        let slope = |head: usize| {
            if self.alibi {
                0.5f32.powi(head as i32 + 1)
            } else {
                0.
            }
        };
        (0..self.heads).map(slope).collect()
    }

    /// The window as the crate has it: a limit beyond the keys is none, and the right one is the keys beside a left one.
    fn window(&self) -> (i64, i64) {
        const NONE: i64 = 1 << 40;
        let keys = self.lengths.iter().map(|l| l.1).max().unwrap_or(0);
        let left = self.left.filter(|left| *left <= keys);
        let right = self.right.filter(|right| *right <= keys);
        let right = right.or(left.map(|_| keys));
        let limit = |limit: Option<usize>| limit.map_or(NONE, |limit| limit as i64);
        (limit(left), limit(right))
    }

    fn run(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let slopes = match self.alibi {
            true => Some(Tensor::new(self.slopes(), q.device())?),
            false => None,
        };
        let slopes = slopes.as_ref();
        let (left, right, cap, p) = (self.left, self.right, self.softcap, self.dropout);
        let seed = Self::SEED;
        if !self.packed {
            return flash::flash_attn_alibi_windowed_softcap_dropout(
                q, k, v, slopes, SCALE, left, right, cap, p, seed,
            );
        }
        let sums = |of: fn(&(usize, usize)) -> usize| -> Result<Tensor> {
            let mut sums = vec![0u32];
            for length in self.lengths {
                sums.push(sums[sums.len() - 1] + of(length) as u32);
            }
            Tensor::new(sums, q.device())
        };
        let most = |of: fn(&(usize, usize)) -> usize| self.lengths.iter().map(of).max();
        let (rows, keys) = (most(|l| l.0).unwrap_or(0), most(|l| l.1).unwrap_or(0));
        flash::flash_attn_varlen_alibi_windowed_softcap_dropout(
            q,
            k,
            v,
            slopes,
            &sums(|l| l.0)?,
            &sums(|l| l.1)?,
            rows,
            keys,
            SCALE,
            left,
            right,
            cap,
            p,
            seed,
        )
    }

    /// Row-major results of all sequences.
    fn textbook(&self, [q, k, v]: [&[f64]; 3]) -> Vec<f64> {
        let (size, group) = (self.size, self.heads / self.kv_heads);
        let ((left, right), slopes) = (self.window(), self.slopes());
        let mut out = vec![0.; q.len()];
        let (mut first_row, mut first_key) = (0, 0);
        for (b, &(rows, keys)) in self.lengths.iter().enumerate() {
            for (row, head) in (0..rows).flat_map(|row| (0..self.heads).map(move |h| (row, h))) {
                let p = row as i64 + keys as i64 - rows as i64;
                let at = ((first_row + row) * self.heads + head) * size;
                let line = |key: usize| ((first_key + key) * self.kv_heads + head / group) * size;
                let mut weights = Vec::new();
                for key in (0..keys).filter(|key| {
                    let key = *key as i64;
                    p - left <= key && key <= p + right
                }) {
                    let key_line = &k[line(key)..][..size];
                    let dot: f64 = q[at..at + size]
                        .iter()
                        .zip(key_line)
                        .map(|(a, b)| a * b)
                        .sum();
                    let mut score = dot * f64::from(SCALE);
                    if let Some(cap) = self.softcap.map(f64::from) {
                        score = cap * (score / cap).tanh();
                    }
                    let distance = (p - key as i64).abs() as f64;
                    weights.push((key, (score - f64::from(slopes[head]) * distance).exp()));
                }
                let sum: f64 = weights.iter().map(|w| w.1).sum();
                for (key, weight) in weights {
                    let factor = factor(self.dropout, (b * self.heads + head) as u32, row, key);
                    for column in 0..size {
                        out[at + column] += weight / sum * factor * v[line(key) + column];
                    }
                }
            }
            first_row += rows;
            first_key += keys;
        }
        out
    }

    fn numbers(&self, dtype: DType) -> Result<Vec<Tensor>> {
        let tensor = |(i, shape): (usize, Vec<usize>)| {
            let numbers = values(shape.iter().product(), 60 + i as u64, -1.5, 1.5);
            Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)
        };
        self.shapes().into_iter().enumerate().map(tensor).collect()
    }

    /// Result and gradients of queries, keys and values.
    fn gradients(&self, inputs: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
        let var = |x: &Tensor| Var::from_tensor(&x.to_device(device)?);
        let vars: Vec<Var> = inputs.iter().map(var).collect::<Result<_>>()?;
        let y = self.run(&vars[0], &vars[1], &vars[2])?;
        let store = y.mul(&weights(&y)?)?.sum_all()?.backward()?;
        let mut all = vec![y];
        for var in &vars {
            match store.get(var) {
                Some(gradient) => all.push(gradient.clone()),
                None => candle_core::bail!("an input has no gradient"),
            }
        }
        Ok(all)
    }
}

/// Philox 4x32-10 (Salmon and others, 2011) with this key and counter.
fn philox(key: u64, mut c: [u32; 4]) -> [u32; 4] {
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let products = [u64::from(c[0]) * 0xd251_1f53, u64::from(c[2]) * 0xcd9e_8d57];
        let high = products.map(|p| (p >> 32) as u32);
        c = [
            high[1] ^ c[1] ^ key[0],
            products[1] as u32,
            high[0] ^ c[3] ^ key[1],
            products[0] as u32,
        ];
        key = [
            key[0].wrapping_add(0x9e37_79b9),
            key[1].wrapping_add(0xbb67_ae85),
        ];
    }
    c
}

/// What dropout multiplies a weight by.
fn factor(p: f32, line: u32, row: usize, key: usize) -> f64 {
    let words = philox(Case::SEED, [key as u32 / 4, row as u32, line, 0]);
    let p = f64::from(p);
    match f64::from(words[key % 4]) < (p * 2f64.powi(32)).round() {
        true => 0.,
        false => 1. / (1. - p),
    }
}

/// Weights for the elements of a result, so that no gradient cancels; every dtype has them.
fn weights(y: &Tensor) -> Result<Tensor> {
    let weights = values(y.elem_count(), 7, 2., 6.);
    let weights: Vec<f64> = weights.iter().map(|w| w.round() / 4.).collect();
    let weights = Tensor::from_vec(weights, y.shape(), &Device::Cpu)?;
    weights.to_dtype(y.dtype())?.to_device(y.device())
}

/// On the CPU, against central differences of the textbook.
fn gradients_are_derivatives(_: &Context, _: &mut Report) -> Result<()> {
    const STEP: f64 = 1e-4;
    for case in SMALL {
        let inputs = case.numbers(DType::F32)?;
        let got = case.gradients(&inputs, &Device::Cpu)?;
        let numbers: Vec<Vec<f64>> = inputs.iter().map(to_f64).collect::<Result<_>>()?;
        let want = case.textbook([&numbers[0], &numbers[1], &numbers[2]]);
        let error = nmse(&to_f64(&got[0])?, &want).map_err(candle_core::Error::msg)?;
        ensure!(error < 1e-11, "{case:?}: NMSE {error:e}");
        let factors = to_f64(&weights(&got[0])?)?;
        let sum = |numbers: &[Vec<f64>]| -> f64 {
            let y = case.textbook([&numbers[0], &numbers[1], &numbers[2]]);
            y.iter().zip(&factors).map(|(y, w)| y * w).sum()
        };
        for i in 0..3 {
            let mut moved = numbers.clone();
            let mut want = Vec::new();
            for element in 0..numbers[i].len() {
                let x = numbers[i][element];
                let mut at = |x: f64| {
                    moved[i][element] = x;
                    sum(&moved)
                };
                want.push((at(x + STEP) - at(x - STEP)) / (2. * STEP));
                moved[i][element] = x;
            }
            let error = nmse(&to_f64(&got[1 + i])?, &want).map_err(candle_core::Error::msg)?;
            ensure!(error < 1e-10, "{case:?}, input {i}: NMSE {error:e}");
        }
    }
    Ok(())
}

fn gradients_are_those_of_the_cpu(context: &Context, report: &mut Report) -> Result<()> {
    let cases = SMALL.iter().chain(context.first(3, &LARGE));
    for case in cases {
        for (dtype, limit) in [(DType::F32, 1e-10), (DType::F16, 4e-6), (DType::BF16, 3e-4)] {
            let inputs = case.numbers(dtype)?;
            // The CPU in f32, which knows the numbers that the dtype has.
            let wide: Vec<Tensor> = inputs
                .iter()
                .map(|x| x.to_dtype(DType::F32))
                .collect::<Result<_>>()?;
            let want = case.gradients(&wide, &Device::Cpu)?;
            let got = case.gradients(&inputs, &context.device);
            let all = ["result", "gradient of q", "gradient of k", "gradient of v"];
            for (i, what) in all.iter().enumerate() {
                let got = match &got {
                    Ok(got) => Ok(got[i].clone()),
                    Err(error) => Err(candle_core::Error::msg(error.to_string())),
                };
                let (op, what) = ("gradient of flash_attn", format!("{what}, {case:?}"));
                report.compare(op, name(dtype), &what, limit, got, Ok(want[i].clone()));
            }
        }
    }
    views_have_gradients(context)
}

/// Operands that are views, of a packed projection and with heads before rows: as for contiguous ones.
fn views_have_gradients(context: &Context) -> Result<()> {
    let case = Case {
        right: Some(0),
        ..CASE
    };
    for device in [context.device.clone(), Device::Cpu] {
        let inputs = case.numbers(DType::F32)?;
        let want = case.gradients(&inputs, &Device::Cpu)?;
        let var = |x: &Tensor| Var::from_tensor(&x.to_device(&device)?);
        let q = var(&inputs[0].transpose(1, 2)?.contiguous()?)?;
        let kv = var(&Tensor::cat(&[&inputs[1], &inputs[2]], 2)?)?;
        let (k, v) = (kv.narrow(2, 0, 2)?, kv.narrow(2, 2, 2)?);
        let y = case.run(&q.transpose(1, 2)?, &k, &v)?;
        let store = y.mul(&weights(&y)?)?.sum_all()?.backward()?;
        let (dq, dkv) = (store.get(&q), store.get(&kv));
        let (Some(dq), Some(dkv)) = (dq, dkv) else {
            candle_core::bail!("a view has no gradient")
        };
        let got = [
            dq.transpose(1, 2)?,
            dkv.narrow(2, 0, 2)?,
            dkv.narrow(2, 2, 2)?,
        ];
        for (got, want) in got.iter().zip(&want[1..]) {
            let error = nmse(&to_f64(got)?, &to_f64(want)?).map_err(candle_core::Error::msg)?;
            ensure!(
                error < 1e-10,
                "views on {:?}: NMSE {error:e}",
                device.location()
            );
        }
    }
    Ok(())
}

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    let x = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(x.into_iter().map(f32::to_bits).collect())
}

fn dropout_is_what_its_seed_says(context: &Context, _: &mut Report) -> Result<()> {
    const P: f32 = 0.25;
    for device in [context.device.clone(), Device::Cpu] {
        let x = |seed: u64, shape: &[usize]| -> Result<Tensor> {
            let numbers = values(shape.iter().product(), seed, -1., 1.);
            let x = Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(DType::F32)?;
            x.to_device(&device)
        };
        let (q, k) = (x(1, &[2, 64, 2, 64])?, x(2, &[2, 64, 2, 64])?);
        // Values that show the weights.
        let eye = Tensor::eye(64, DType::F32, &device)?.reshape((1, 64, 1, 64))?;
        let v = eye.broadcast_as((2, 64, 2, 64))?.contiguous()?;
        let dropped =
            |p: f32, seed: u64| flash::flash_attn_dropout(&q, &k, &v, 0.1, false, p, seed);
        let plain = flash::flash_attn(&q, &k, &v, 0.1, false)?;
        // Nothing is dropped: the same bits, gradients included.
        ensure!(bits(&dropped(0., 5)?)? == bits(&plain)?);
        let got = to_f64(&dropped(P, Case::SEED)?)?;
        let (whole, count) = (to_f64(&plain)?, got.len());
        let mut kept = 0;
        for (i, (got, whole)) in got.iter().zip(&whole).enumerate() {
            let (key, head, row, b) = (i % 64, i / 64 % 2, i / 128 % 64, i / 8192);
            let factor = factor(P, (b * 2 + head) as u32, row, key);
            kept += usize::from(factor != 0.);
            let want = whole * factor;
            ensure!(
                (got - want).abs() < 1e-6,
                "weight {i}: {got} instead of {want}"
            );
        }
        let rate = kept as f64 / count as f64;
        // Four standard deviations of so many draws.
        let deviation = (f64::from(P) * (1. - f64::from(P)) / count as f64).sqrt();
        ensure!((rate - 0.75).abs() < 4. * deviation, "{rate} are kept");
        ensure!(bits(&dropped(P, 1)?)? == bits(&dropped(P, 1)?)?);
        ensure!(bits(&dropped(P, 1)?)? != bits(&dropped(P, 2)?)?);
        for p in [-0.1, 1., f32::NAN] {
            let error = error_of(dropped(p, 1), "dropout")?;
            ensure!(error.contains("dropout"), "{error}");
        }
        // What has no gradient says so.
        let slopes = Var::new(&[0.5f32, 0.25], &device)?;
        let error = error_of(
            flash::flash_attn_alibi(&q, &k, &v, &slopes, 0.1, true),
            "slopes",
        )?;
        ensure!(error.contains("no gradient of ALiBi slopes"), "{error}");
        let q = Var::from_tensor(&q)?;
        for dropout in [0., P] {
            let run = || -> Result<Vec<u32>> {
                let y = flash::flash_attn_dropout(&q, &k, &v, 0.1, true, dropout, 3)?;
                let store = y.sqr()?.backward()?;
                let Some(gradient) = store.get(&q) else {
                    candle_core::bail!("the queries have no gradient")
                };
                ensure!(
                    store.get(&k).is_none(),
                    "the keys take no part in the graph"
                );
                bits(gradient)
            };
            ensure!(
                run()? == run()?,
                "gradients differ from one time to the next"
            );
        }
    }
    Ok(())
}

/// A transformer of one layer: embedding, LayerNorm, attention with dropout, RmsNorm, gated feed-forward layer.
struct Transformer {
    vars: Vec<Var>,
}

const WIDTH: usize = 32;
const TOKENS: usize = 12;
const WORDS: usize = 11;

impl Transformer {
    fn new(device: &Device) -> Result<Self> {
        let shapes: [&[usize]; 9] = [
            &[WORDS, WIDTH],
            &[WIDTH],
            &[WIDTH],
            &[3 * WIDTH, WIDTH],
            &[WIDTH, WIDTH],
            &[WIDTH],
            &[4 * WIDTH, WIDTH],
            &[WIDTH, 2 * WIDTH],
            &[WORDS, WIDTH],
        ];
        let var = |(i, shape): (usize, &&[usize])| {
            let (low, high) = match i {
                1 | 5 => (0.9, 1.1),
                _ => (-0.3, 0.3),
            };
            let numbers = values(shape.iter().product(), 80 + i as u64, low, high);
            let x = Tensor::from_vec(numbers, *shape, &Device::Cpu)?.to_dtype(DType::F32)?;
            Var::from_tensor(&x.to_device(device)?)
        };
        let vars = shapes.iter().enumerate().map(var).collect::<Result<_>>()?;
        Ok(Transformer { vars })
    }

    fn forward(&self, tokens: &Tensor, seed: u64) -> Result<Tensor> {
        let w: Vec<Tensor> = self.vars.iter().map(|v| v.as_tensor().clone()).collect();
        let linear = |i: usize, x: &Tensor| Linear::new(w[i].clone(), None).forward(x);
        let (batch, length) = tokens.dims2()?;
        let x = Embedding::new(w[0].clone(), WIDTH).forward(tokens)?;
        let normed = LayerNorm::new(w[1].clone(), w[2].clone(), 1e-5).forward(&x)?;
        let heads = linear(3, &normed)?.reshape((batch, length, 12, WIDTH / 4))?;
        let head = |i: usize| heads.narrow(2, 4 * i, 4);
        let attended =
            flash::flash_attn_dropout(&head(0)?, &head(1)?, &head(2)?, 0.35, true, 0.1, seed)?;
        let attended = linear(4, &attended.flatten_from(2)?)?;
        let (x, normed) = fused::add_rms_norm(&attended, &x, &w[5], 1e-5)?;
        let gate_up = linear(6, &normed)?;
        let hidden = fused::gate_mul_packed(candle_nn::Activation::Silu, &gate_up)?;
        let x = (x + linear(7, &hidden)?)?;
        let normed = RmsNorm::new(w[5].clone(), 1e-5).forward(&x)?;
        let logits = linear(8, &normed)?;
        candle_nn::ops::softmax_last_dim(&logits)?
            .clamp(1e-6, 1.)?
            .log()
    }
}

/// Losses of steps that teach it to repeat a sequence's beginning.
fn train(device: &Device, steps: usize) -> Result<Vec<f64>> {
    let model = Transformer::new(device)?;
    let word = |i: usize| ((i / TOKENS * 3 + i % TOKENS % 4) % WORDS) as u32;
    let words: Vec<u32> = (0..4 * TOKENS).map(word).collect();
    let words = Tensor::from_vec(words, (4, TOKENS), device)?;
    let inputs = words.narrow(1, 0, TOKENS - 1)?.contiguous()?;
    let targets = words.narrow(1, 1, TOKENS - 1)?.contiguous()?;
    let params = ParamsAdamW {
        lr: 0.01,
        ..Default::default()
    };
    let mut optimizer = AdamW::new(model.vars.clone(), params)?;
    (0..steps)
        .map(|step| {
            let logits = model.forward(&inputs, step as u64)?.flatten_to(D::Minus2)?;
            let loss = loss::nll(&logits, &targets.flatten_all()?)?;
            optimizer.backward_step(&loss)?;
            Ok(f64::from(loss.to_scalar::<f32>()?))
        })
        .collect()
}

fn a_transformer_learns_with_fused_operations(
    context: &Context,
    report: &mut Report,
) -> Result<()> {
    let steps = context.pick(4, 30);
    let (got, want) = (train(&context.device, steps)?, train(&Device::Cpu, steps)?);
    if context.size == Size::Full {
        ensure!(want[steps - 1] < want[0] / 3., "{want:?}");
    }
    for (step, (got, want)) in got.iter().zip(&want).enumerate() {
        let is_near = (got - want).abs() <= 3e-3 * want;
        let failure = (!is_near).then(|| format!("a loss of {got} instead of {want}"));
        report.record("transformer", "f32", &format!("step {step}"), failure);
    }
    Ok(())
}
