//! Training on several devices: a small language model of bytes learns a page of text, each device with a part of the
//! batch, and comes out as on one device.
//!
//!     cargo run -p examples --release --example 07_data_parallel -- --devices 0,1
//!     cargo run -p examples --release --example 07_data_parallel -- --devices cpu:4
//!
//! `--steps N`, `--width N` and `--batch N` make it larger. Gradients of a block are reduced while the block before it
//! computes its own; the times with and without are printed.

use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_nn::ops::softmax;
use candle_nn::{
    embedding, layer_norm, linear, loss, AdamW, Embedding, LayerNorm, Linear, Module, ParamsAdamW,
    VarBuilder, VarMap,
};
use candle_rocm_collective::training::{are_equal, Chain, DistributedOptimizer};
use candle_rocm_collective::{host, rccl, Communicator};
use std::time::{Duration, Instant};

const TEXT: &[u8] = include_bytes!("../README.md");
/// Bytes of a row of the batch.
const LENGTH: usize = 32;
const BLOCKS: usize = 3;

/// A block of a transformer with one head.
struct Block {
    norms: [LayerNorm; 2],
    mixed: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(width: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            norms: [
                layer_norm(width, 1e-5, vb.pp("n0"))?,
                layer_norm(width, 1e-5, vb.pp("n1"))?,
            ],
            mixed: linear(width, 3 * width, vb.pp("qkv"))?,
            out: linear(width, width, vb.pp("out"))?,
            up: linear(width, 4 * width, vb.pp("up"))?,
            down: linear(4 * width, width, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let width = x.dim(D::Minus1)?;
        let parts = self
            .mixed
            .forward(&self.norms[0].forward(x)?)?
            .chunk(3, D::Minus1)?;
        let scores = (parts[0]
            .contiguous()?
            .matmul(&parts[1].t()?.contiguous()?)?
            / (width as f64).sqrt())?;
        let weights = softmax(&scores.broadcast_add(mask)?, D::Minus1)?;
        let x = (x + self
            .out
            .forward(&weights.matmul(&parts[2].contiguous()?)?)?)?;
        let inner = self.up.forward(&self.norms[1].forward(&x)?)?.silu()?;
        x + self.down.forward(&inner)?
    }
}

struct Model {
    variables: VarMap,
    bytes: Embedding,
    places: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    mask: Tensor,
    at: Tensor,
}

impl Model {
    fn new(width: usize, device: &Device) -> Result<Self> {
        let variables = VarMap::new();
        let vb = VarBuilder::from_varmap(&variables, DType::F32, device);
        let masked = |row: usize, column: usize| if column > row { -1e9 } else { 0f32 };
        let mask: Vec<f32> = (0..LENGTH * LENGTH)
            .map(|i| masked(i / LENGTH, i % LENGTH))
            .collect();
        Ok(Self {
            bytes: embedding(256, width, vb.pp("bytes"))?,
            places: embedding(LENGTH, width, vb.pp("places"))?,
            blocks: (0..BLOCKS)
                .map(|i| Block::new(width, vb.pp(format!("block{i}"))))
                .collect::<Result<_>>()?,
            norm: layer_norm(width, 1e-5, vb.pp("norm"))?,
            head: linear(width, 256, vb.pp("head"))?,
            mask: Tensor::from_vec(mask, (LENGTH, LENGTH), device)?,
            at: Tensor::arange(0u32, LENGTH as u32, device)?,
            variables,
        })
    }

    /// The variables of the embedding, of each block, and of the head, in the order of the forward pass.
    fn variables(&self) -> Vec<Vec<Var>> {
        let variables = self
            .variables
            .data()
            .lock()
            .expect("nobody panics with it")
            .clone();
        let mut names: Vec<&String> = variables.keys().collect();
        names.sort();
        let part = |prefixes: &[&str]| -> Vec<Var> {
            let is_of_part =
                |name: &&&String| prefixes.iter().any(|prefix| name.starts_with(prefix));
            names
                .iter()
                .filter(is_of_part)
                .map(|name| variables[*name].clone())
                .collect()
        };
        let mut parts = vec![part(&["bytes", "places"])];
        parts.extend((0..BLOCKS).map(|i| part(&[&format!("block{i}.")])));
        parts.push(part(&["norm", "head"]));
        parts
    }

    fn embed(&self, x: &Tensor) -> Result<Tensor> {
        self.bytes
            .forward(x)?
            .broadcast_add(&self.places.forward(&self.at)?)
    }

    fn answer(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.norm.forward(x)?)?.flatten_to(1)
    }

    fn chain(&self, x: &Tensor) -> Result<Chain> {
        let mut chain = Chain::new(x);
        chain.block(|x| self.embed(x))?;
        for block in &self.blocks {
            chain.block(|x| block.forward(x, &self.mask))?;
        }
        chain.block(|x| self.answer(x))?;
        Ok(chain)
    }

    fn whole(&self, x: &Tensor) -> Result<Tensor> {
        let x = self
            .blocks
            .iter()
            .try_fold(self.embed(x)?, |x, block| block.forward(&x, &self.mask))?;
        self.answer(&x)
    }
}

/// Rows of a step's batch and the bytes that follow, from places of the text that depend on the step only.
fn batch(step: usize, rows: std::ops::Range<usize>, device: &Device) -> Result<(Tensor, Tensor)> {
    let begin = |row: usize| (step * 7919 + row * 104_729) % (TEXT.len() - LENGTH - 1);
    let shape = (rows.len(), LENGTH);
    let row = |offset: usize| {
        let bytes = rows.clone().flat_map(|row| {
            let begin = begin(row) + offset;
            TEXT[begin..begin + LENGTH]
                .iter()
                .map(|byte| u32::from(*byte))
        });
        Tensor::from_vec(bytes.collect::<Vec<u32>>(), shape, device)
    };
    Ok((row(0)?, row(1)?.flatten_all()?))
}

#[derive(Clone)]
struct Options {
    devices: Vec<Device>,
    steps: usize,
    width: usize,
    batch: usize,
}

/// What a rank found: losses, time, and whether all ranks came to the same weights.
struct Trained {
    losses: Vec<f32>,
    time: Duration,
    are_equal: bool,
}

/// Trains a rank that begins with the first one's weights, which are those given.
fn train(
    rank: Communicator,
    options: &Options,
    begin: &[Tensor],
    by_blocks: bool,
) -> Result<Trained> {
    let device = rank.device().clone();
    let model = Model::new(options.width, &device)?;
    let parts = model.variables();
    if rank.rank() == 0 {
        for (variable, value) in parts.iter().flatten().zip(begin) {
            variable.set(&value.to_device(&device)?)?;
        }
    }
    let parameters = ParamsAdamW {
        lr: 3e-3,
        ..Default::default()
    };
    let mut optimizer: DistributedOptimizer<AdamW> =
        DistributedOptimizer::with_buckets(rank.clone(), parts, parameters, 1 << 20)?;
    let rows = options.batch / rank.size();
    let own = rank.rank() * rows..(rank.rank() + 1) * rows;
    let (mut losses, mut began) = (Vec::new(), Instant::now());
    for step in 0..options.steps {
        let (x, y) = batch(step, own.clone(), &device)?;
        let loss = if by_blocks {
            optimizer.step_chain(model.chain(&x)?, |found| loss::cross_entropy(found, &y))?
        } else {
            let loss = loss::cross_entropy(&model.whole(&x)?, &y)?;
            optimizer.step(&loss)?;
            loss
        };
        losses.push(optimizer.average(&loss)?.to_scalar::<f32>()?);
        if step == 0 {
            // Kernels are compiled in the first step.
            began = Instant::now();
        }
    }
    Ok(Trained {
        losses,
        time: began.elapsed() / (options.steps - 1).max(1) as u32,
        are_equal: are_equal(&rank, &optimizer.variables())?,
    })
}

/// A group of the devices: through RCCL where it works, else through the host's memory.
fn group(devices: &[Device]) -> Result<Vec<Communicator>> {
    if devices.len() > 1 && devices.iter().all(Device::is_rocm) {
        match rccl::group(devices) {
            Ok(group) => return Ok(group),
            Err(error) => println!("not through RCCL: {error}"),
        }
    }
    host::group(devices)
}

fn all_ranks(options: &Options, begin: &[Tensor], by_blocks: bool) -> Result<Vec<Trained>> {
    let ranks = group(&options.devices)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| scope.spawn(move || train(rank, options, begin, by_blocks)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the thread does not panic"))
            .collect()
    })
}

/// `0,1` are GPUs, `cpu:4` four ranks on the CPU.
fn devices(text: &str) -> Result<Vec<Device>> {
    match text.strip_prefix("cpu:").map(str::parse) {
        Some(Ok(count)) => Ok(vec![Device::Cpu; count]),
        Some(Err(_)) => candle_core::bail!("{text:?} is not cpu:NUMBER"),
        None => text
            .split(',')
            .map(|ordinal| match ordinal.trim().parse() {
                Ok(ordinal) => Device::new_rocm(ordinal),
                Err(_) => candle_core::bail!("{text:?} is neither NUMBER,NUMBER,… nor cpu:NUMBER"),
            })
            .collect(),
    }
}

fn options() -> Result<Options> {
    let mut options = Options {
        devices: vec![Device::Cpu; 2],
        steps: 6,
        width: 32,
        batch: 8,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let Some(value) = arguments.next() else {
            candle_core::bail!("{name} needs a value");
        };
        let number = || match value.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => candle_core::bail!("{name} is {value:?}, and should be a number above 0"),
        };
        match name.as_str() {
            "--devices" => options.devices = devices(&value)?,
            "--steps" => options.steps = number()?,
            "--width" => options.width = number()?,
            "--batch" => options.batch = number()?,
            _ => candle_core::bail!(
                "there are --devices, --steps, --width and --batch, and no {name}"
            ),
        }
    }
    if !options.batch.is_multiple_of(options.devices.len()) {
        let ranks = options.devices.len();
        candle_core::bail!("{} rows do not divide among {ranks} ranks", options.batch);
    }
    Ok(options)
}

fn main() -> Result<()> {
    let options = options()?;
    // The weights that all runs begin with.
    let begin = Model::new(options.width, &Device::Cpu)?.variables();
    let begin: Vec<Tensor> = begin
        .iter()
        .flatten()
        .map(|variable| variable.detach())
        .collect();
    let count: usize = begin.iter().map(Tensor::elem_count).sum();
    println!("{} weights, {} ranks", count, options.devices.len());

    let alone = Options {
        devices: options.devices[..1].to_vec(),
        ..options.clone()
    };
    let alone = all_ranks(&alone, &begin, false)?.remove(0);
    println!("one rank, the whole batch: {:.1?} a step", alone.time);
    for (by_blocks, how) in [
        (false, "after the backward pass"),
        (true, "beside the backward pass"),
    ] {
        let ranks = all_ranks(&options, &begin, by_blocks)?;
        println!("gradients reduced {how}: {:.1?} a step", ranks[0].time);
        for (step, (found, expected)) in ranks[0].losses.iter().zip(&alone.losses).enumerate() {
            if by_blocks {
                println!("step {step}: loss {found:.5}, of one rank {expected:.5}");
            }
            assert!(
                (found - expected).abs() < 2e-3 * expected.abs(),
                "step {step}: {found} and {expected}"
            );
        }
        assert!(
            ranks.iter().all(|rank| rank.are_equal),
            "ranks came to different weights"
        );
    }
    Ok(())
}
