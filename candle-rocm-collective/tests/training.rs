//! Data-parallel training: against one device with the whole batch, on the CPU and on simulated or real GPUs.

mod common;

use candle::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::{loss, Optimizer, SGD};
use candle_rocm_collective::training::{
    are_equal, synchronize, Chain, DistributedOptimizer, Reducer,
};
use candle_rocm_collective::{host, Backend, Communicator, Error, Reduce};
use common::ranks;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Three layers; the second one's matrix is used by the third one, too.
#[derive(Clone)]
struct Network {
    first: Var,
    shared: Var,
    offsets: [Var; 3],
}

const WIDTH: usize = 6;

/// Numbers that are the same on every device.
fn numbers(seed: usize, shape: (usize, usize), device: &Device) -> Result<Tensor> {
    let count = shape.0 * shape.1;
    let value = |at: usize| (((at + 1) * (2 * seed + 7919) % 1000) as f32 / 500.0 - 1.0) * 0.5;
    Tensor::from_vec((0..count).map(value).collect::<Vec<f32>>(), shape, device)
}

impl Network {
    fn new(seed: usize, device: &Device) -> Result<Self> {
        let var = |seed, shape| Var::from_tensor(&numbers(seed, shape, device)?);
        Ok(Self {
            first: var(seed, (4, WIDTH))?,
            shared: var(seed + 1, (WIDTH, WIDTH))?,
            offsets: [
                var(seed + 2, (1, WIDTH))?,
                var(seed + 3, (1, WIDTH))?,
                var(seed + 4, (1, WIDTH))?,
            ],
        })
    }

    fn block(&self, number: usize, x: &Tensor) -> Result<Tensor> {
        let matrix = if number == 0 {
            &self.first
        } else {
            &self.shared
        };
        x.matmul(matrix)?
            .broadcast_add(&self.offsets[number])?
            .tanh()
    }

    fn whole(&self, x: &Tensor) -> Result<Tensor> {
        (0..3).try_fold(x.clone(), |x, number| self.block(number, &x))
    }

    fn blocks(&self) -> Vec<Vec<Var>> {
        let matrix = |number| {
            if number == 0 {
                &self.first
            } else {
                &self.shared
            }
        };
        (0..3)
            .map(|number| vec![matrix(number).clone(), self.offsets[number].clone()])
            .collect()
    }

    fn variables(&self) -> Vec<Var> {
        [
            &[self.first.clone(), self.shared.clone()][..],
            &self.offsets,
        ]
        .concat()
    }

    fn values(&self) -> Result<Vec<f32>> {
        let values = self.variables().into_iter();
        let values = values.map(|v| v.flatten_all()?.to_device(&Device::Cpu)?.to_vec1::<f32>());
        Ok(values.collect::<Result<Vec<_>>>()?.concat())
    }
}

const ROWS: usize = 12;
const STEPS: usize = 5;

fn data(device: &Device) -> Result<(Tensor, Tensor)> {
    Ok((
        numbers(50, (ROWS, 4), device)?,
        numbers(60, (ROWS, WIDTH), device)?,
    ))
}

/// The losses and the weights of one device with the whole batch.
fn alone() -> Result<(Vec<f32>, Vec<f32>)> {
    let network = Network::new(1, &Device::Cpu)?;
    let (x, y) = data(&Device::Cpu)?;
    let mut optimizer = SGD::new(network.variables(), 0.3)?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let loss = loss::mse(&network.whole(&x)?, &y)?;
        optimizer.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    Ok((losses, network.values()?))
}

/// One rank's losses and weights, and whether all had the same ones; rows are divided as told.
fn train(
    rank: &Communicator,
    rows: &[usize],
    by_blocks: bool,
    bucket_bytes: usize,
) -> Result<(Vec<f32>, Vec<f32>, bool)> {
    // Only the first rank begins with the right weights.
    let network = Network::new(1 + 10 * rank.rank(), rank.device())?;
    let first: usize = rows[..rank.rank()].iter().sum();
    let (x, y) = data(rank.device())?;
    let (x, y) = (
        x.narrow(0, first, rows[rank.rank()])?,
        y.narrow(0, first, rows[rank.rank()])?,
    );
    let mut optimizer: DistributedOptimizer<SGD> =
        DistributedOptimizer::with_buckets(rank.clone(), network.blocks(), 0.3, bucket_bytes)?;
    optimizer.set_share(rows[rank.rank()] as f64 / ROWS as f64);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let loss = if by_blocks {
            let mut chain = Chain::new(&x);
            for number in 0..3 {
                chain.block(|x| network.block(number, x))?;
            }
            optimizer.step_chain(chain, |found| loss::mse(found, &y))?
        } else {
            let loss = loss::mse(&network.whole(&x)?, &y)?;
            optimizer.step(&loss)?;
            loss
        };
        losses.push(optimizer.average(&loss)?.to_scalar::<f32>()?);
    }
    let equal = are_equal(rank, &network.variables())?;
    Ok((losses, network.values()?, equal))
}

fn near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

fn as_one_device_would(devices: &[Device], rows: &[usize]) {
    let (losses, weights) = alone().unwrap();
    // One bucket for each variable, some, and one for all.
    for (by_blocks, bucket_bytes) in [(true, 1), (true, 150), (false, 150), (false, 1 << 20)] {
        let group = host::group(devices).unwrap();
        let found = ranks(group, |rank| train(&rank, rows, by_blocks, bucket_bytes));
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        for (of_rank, of_weights, are_equal) in &found {
            assert!(near(of_rank, &losses), "{of_rank:?} {losses:?}");
            assert!(near(of_weights, &weights), "{by_blocks} {bucket_bytes}");
            assert!(are_equal);
            assert_eq!(of_weights, &found[0].1);
        }
    }
}

#[test]
fn two_and_four_ranks_learn_what_one_does() {
    as_one_device_would(&vec![Device::Cpu; 2], &[6, 6]);
    as_one_device_would(&vec![Device::Cpu; 4], &[3; 4]);
    as_one_device_would(&[Device::Cpu], &[12]);
}

#[test]
fn ranks_with_batches_of_different_sizes_learn_the_same() {
    as_one_device_would(&vec![Device::Cpu; 3], &[2, 7, 3]);
}

#[test]
fn gpus_learn_what_the_cpu_does() {
    if std::env::var("CANDLE_ROCM_TEST_DEVICE").as_deref() != Ok("rocm") {
        eprintln!("CANDLE_ROCM_TEST_DEVICE is not rocm: no GPU is asked for");
        return;
    }
    // Two streams of a GPU are two devices.
    let devices = [
        Device::new_rocm_with_stream(0).unwrap(),
        Device::new_rocm_with_stream(0).unwrap(),
    ];
    as_one_device_would(&devices, &[6, 6]);
}

#[test]
fn blocks_give_the_gradients_of_the_whole_bit_for_bit() -> Result<()> {
    let network = Network::new(3, &Device::Cpu)?;
    let (x, y) = data(&Device::Cpu)?;
    let whole = loss::mse(&network.whole(&x)?, &y)?.backward()?;
    let mut chain = Chain::new(&x);
    for number in 0..3 {
        chain.block(|x| network.block(number, x))?;
    }
    let mut order = Vec::new();
    let (mut offsets, mut shared) = (Vec::new(), Vec::new());
    chain.backward(
        |found| loss::mse(found, &y),
        |number, mut gradients| {
            order.push(number);
            offsets.extend(gradients.remove(&network.offsets[number]));
            shared.extend(gradients.remove(&network.shared));
            Ok(())
        },
    )?;
    assert_eq!(order, [2, 1, 0]);
    offsets.reverse();
    for (found, variable) in offsets.iter().zip(&network.offsets) {
        let expected = whole.get(variable).unwrap().to_vec2::<f32>()?;
        assert_eq!(found.to_vec2::<f32>()?, expected);
    }
    let sum = (&shared[0] + &shared[1])?.to_vec2::<f32>()?;
    assert_eq!(sum, whole.get(&network.shared).unwrap().to_vec2::<f32>()?);
    Ok(())
}

/// A rank in memory that tells when a sum is there.
#[derive(Debug)]
struct Telling {
    rank: Communicator,
    summed: Mutex<Sender<usize>>,
}

impl Backend for Telling {
    fn name(&self) -> &'static str {
        "telling"
    }

    fn is_capturable(&self) -> bool {
        false
    }

    fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let sum = self.rank.all_reduce(x, by)?;
        self.summed.lock().unwrap().send(x.elem_count()).unwrap();
        Ok(sum)
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        self.rank.all_gather(x)
    }

    fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        self.rank.reduce_scatter(x, by)
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        self.rank.broadcast(x, root)
    }

    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        self.rank.send(x, to)
    }

    fn recv(&self, shape: &Shape, dtype: DType, from: usize) -> Result<Tensor> {
        self.rank.recv(shape, dtype, from)
    }

    fn barrier(&self) -> Result<()> {
        self.rank.barrier()
    }

    fn abort(&self, reason: &str) {
        self.rank.abort(reason);
    }
}

#[test]
fn gradients_are_reduced_before_earlier_blocks_compute_theirs() {
    for result in ranks(host::group(&[Device::Cpu, Device::Cpu]).unwrap(), |rank| {
        let (summed, sums) = mpsc::channel();
        let backend = Telling {
            rank: rank.clone(),
            summed: Mutex::new(summed),
        };
        let (own, device) = (rank.rank(), rank.device().clone());
        let telling = Communicator::new(own, rank.size(), device, Arc::new(backend));
        let network = Network::new(1, rank.device())?;
        let (x, y) = data(rank.device())?;
        // A bucket for each variable.
        let mut reducer = Reducer::new(telling, network.blocks(), 1)?;
        let mut chain = Chain::new(&x);
        for number in 0..3 {
            chain.block(|x| network.block(number, x))?;
        }
        let mut seen = Vec::new();
        chain.backward(
            |found| loss::mse(found, &y),
            |number, gradients| {
                reducer.add(number, gradients)?;
                // Nothing of the block before has been computed: it waits for what is reduced meanwhile. The matrix
                // that the last two blocks share is complete after the second.
                let complete: usize = if number == 2 { 1 } else { 2 };
                for _ in 0..complete {
                    seen.push(
                        sums.recv_timeout(Duration::from_secs(60))
                            .expect("it is reduced"),
                    );
                }
                Ok(())
            },
        )?;
        reducer.finish()?;
        Ok(seen)
    }) {
        let (offset, matrix, first) = (WIDTH, WIDTH * WIDTH, 4 * WIDTH);
        assert_eq!(result.unwrap(), [offset, matrix, offset, first, offset]);
    }
}

#[test]
fn different_weights_are_noticed_and_mended() {
    for result in ranks(host::group(&vec![Device::Cpu; 3]).unwrap(), |rank| {
        let values = [[1f32, 2.0], [1.0, 2.0], [1.0, 2.0000002]][rank.rank()];
        let variable = Var::new(&values, rank.device())?;
        let before = are_equal(&rank, std::slice::from_ref(&variable))?;
        synchronize(&rank, std::slice::from_ref(&variable))?;
        let after = are_equal(&rank, std::slice::from_ref(&variable))?;
        Ok((before, after, variable.to_vec1::<f32>()?))
    }) {
        assert_eq!(result.unwrap(), (false, true, vec![1.0, 2.0]));
    }
}

#[test]
fn a_variable_that_only_some_ranks_use_is_averaged_all_the_same() {
    for result in ranks(host::group(&[Device::Cpu, Device::Cpu]).unwrap(), |rank| {
        let used = Var::new(&[1f32, 1.0], rank.device())?;
        let rare = Var::new(&[1f32], rank.device())?;
        let blocks = vec![vec![used.clone(), rare.clone()]];
        let mut reducer = Reducer::new(rank.clone(), blocks, 1 << 20)?;
        let loss = match rank.rank() {
            0 => used.sum_all()?,
            _ => used.broadcast_mul(&rare)?.sum_all()?,
        };
        reducer.add(0, loss.backward()?)?;
        let averages = reducer.finish()?;
        let of = |variable: &Var| averages.get(variable).unwrap().to_vec1::<f32>();
        Ok((of(&used)?, of(&rare)?))
    }) {
        assert_eq!(result.unwrap(), (vec![1.0, 1.0], vec![1.0]));
    }
}

#[test]
fn blocks_in_another_order_are_refused() -> Result<()> {
    let alone = host::group(&[Device::Cpu])?.remove(0);
    let variables = [Var::new(1f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?];
    let blocks = variables.iter().map(|v| vec![v.clone()]).collect();
    let mut reducer = Reducer::new(alone.clone(), blocks, 1)?;
    let gradients = || (variables[0].as_tensor() * variables[1].as_tensor())?.backward();
    let refused = |result: Result<()>| {
        let error = result.unwrap_err();
        assert!(
            matches!(Error::of(&error), Some(Error::InvalidArgument { .. })),
            "{error}"
        );
    };
    refused(reducer.add(0, gradients()?));
    refused(reducer.finish().map(|_| ()));
    reducer.add(1, gradients()?)?;
    refused(reducer.add(1, gradients()?));
    refused(reducer.add_whole(gradients()?));
    reducer.add(0, gradients()?)?;
    let averages = reducer.finish()?;
    assert_eq!(
        averages.get(&variables[0]).unwrap().to_scalar::<f32>()?,
        2.0
    );
    // And again.
    reducer.add_whole(gradients()?)?;
    let averages = reducer.finish()?;
    assert_eq!(
        averages.get(&variables[1]).unwrap().to_scalar::<f32>()?,
        1.0
    );
    refused(Reducer::new(alone, vec![vec![]], 1).map(|_| ()));
    Ok(())
}
