//! Whether a backend's sums are right, and how long they take.

use crate::{Communicator, Reduce};
use candle::{DType, Result, Tensor};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Elements of the tensors that are checked: less than a vector, crooked, and several blocks.
const COUNTS: [usize; 3] = [1, 1021, 20_480];
/// Measurements of which the fastest counts.
const REPEATS: usize = 3;
/// Bytes that the calls of a measurement move together, within these numbers of calls.
const MEASURED_BYTES: usize = 4 << 20;
const MOST_CALLS: usize = 20;

/// Runs something on all ranks, a thread each, and waits for so long; what they give, or why there is nothing. A thread
/// that hangs all the same is left behind.
fn on_ranks<T: Send + 'static>(
    ranks: &[Communicator],
    patience: Duration,
    run: impl Fn(&Communicator) -> Result<T> + Clone + Send + 'static,
) -> std::result::Result<Vec<T>, String> {
    let (sender, results) = mpsc::channel();
    for rank in ranks {
        let (rank, sender, run) = (rank.clone(), sender.clone(), run.clone());
        let work = move || {
            let result = run(&rank).map_err(|error| error.to_string());
            let _ = sender.send((rank.rank(), result));
        };
        if let Err(error) = thread::Builder::new().spawn(work) {
            return Err(given_up(
                ranks,
                format!("no thread can be started: {error}"),
            ));
        }
    }
    drop(sender);
    let deadline = Instant::now() + patience;
    let mut found: Vec<Option<T>> = ranks.iter().map(|_| None).collect();
    while let Some(missing) = found.iter().position(Option::is_none) {
        let left = deadline.saturating_duration_since(Instant::now());
        match results.recv_timeout(left) {
            Ok((rank, Ok(result))) => found[rank] = Some(result),
            Ok((rank, Err(error))) => return Err(given_up(ranks, format!("rank {rank}: {error}"))),
            Err(RecvTimeoutError::Timeout) => {
                let reason = format!("rank {missing} gave no answer within {patience:?}");
                return Err(given_up(ranks, reason));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(given_up(ranks, format!("rank {missing} panicked")));
            }
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// Ends what still waits.
fn given_up(ranks: &[Communicator], reason: String) -> String {
    for rank in ranks {
        rank.abort("a check of this backend has failed");
    }
    reason
}

/// Every call on known values. Fails with the first that is wrong.
pub(super) fn check(ranks: &[Communicator], patience: Duration) -> std::result::Result<(), String> {
    on_ranks(ranks, patience, known_values).map(|_| ())
}

/// Element `i` of a rank: integers so small that their sums are exact in every dtype.
fn element(rank: usize, i: usize) -> f32 {
    ((rank + 1) * (i % 5 + 1)) as f32
}

fn tensor(rank: &Communicator, of: usize, count: usize, dtype: DType) -> Result<Tensor> {
    let values: Vec<f32> = (0..count).map(|i| element(of, i)).collect();
    Tensor::new(values, rank.device())?.to_dtype(dtype)
}

/// Fails unless a result has the values that `expected` gives by their number.
fn compare(
    rank: &Communicator,
    what: &str,
    x: &Tensor,
    expected: impl Fn(usize) -> f32,
) -> Result<()> {
    let found = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    rank.check()?;
    let wrong = found.iter().enumerate().find(|(i, v)| **v != expected(*i));
    match wrong {
        None => Ok(()),
        Some((i, v)) => candle::bail!(
            "{what} of {} elements {:?} is wrong: element {i} is {v} instead of {}",
            found.len(),
            x.dtype(),
            expected(i)
        ),
    }
}

fn known_values(rank: &Communicator) -> Result<()> {
    let (own, size) = (rank.rank(), rank.size());
    let sum = |i: usize| (0..size).map(|r| element(r, i)).sum::<f32>();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for count in COUNTS {
            let x = tensor(rank, own, count, dtype)?;
            compare(rank, "the sum", &rank.all_reduce(&x, Reduce::Sum)?, sum)?;
        }
    }
    let x = tensor(rank, own, COUNTS[1], DType::F32)?;
    let largest = rank.all_reduce(&x, Reduce::Max)?;
    compare(rank, "the largest", &largest, |i| element(size - 1, i))?;
    let all = rank.all_gather(&x)?;
    let of_all = |i: usize| element(i / COUNTS[1], i % COUNTS[1]);
    compare(rank, "the gathered tensor", &all, of_all)?;
    let root = rank.broadcast(&x, size - 1)?;
    compare(rank, "the root's tensor", &root, |i| element(size - 1, i))?;
    let shares = tensor(rank, own, 64 * size, DType::F32)?;
    let share = rank.reduce_scatter(&shares, Reduce::Sum)?;
    compare(rank, "a share of the sum", &share, |i| sum(64 * own + i))?;
    // Around, but never all sending at once: a backend may wait for the receiver.
    let (next, before) = ((own + 1) % size, (own + size - 1) % size);
    let receive = || {
        let x = rank.recv(COUNTS[1], DType::F32, before)?;
        compare(rank, "the received tensor", &x, |i| element(before, i))
    };
    if own % 2 == 0 {
        rank.send(&x, next)?;
        receive()?;
    } else {
        receive()?;
        rank.send(&x, next)?;
    }
    rank.barrier()
}

/// The time of an all-reduce of f32 of so many bytes each.
pub(super) fn measure(
    ranks: &[Communicator],
    sizes: &[usize],
    patience: Duration,
) -> std::result::Result<Vec<(usize, Duration)>, String> {
    let own_sizes = sizes.to_vec();
    let times = on_ranks(ranks, patience, move |rank| {
        own_sizes
            .iter()
            .map(|&bytes| time(rank, bytes))
            .collect::<Result<Vec<_>>>()
    })?;
    // A call takes as long as on the slowest rank.
    let slowest = |at: usize| times.iter().map(|rank| rank[at]).max().unwrap_or_default();
    Ok((0..sizes.len()).map(|i| (sizes[i], slowest(i))).collect())
}

fn time(rank: &Communicator, bytes: usize) -> Result<Duration> {
    let count = (bytes / 4).max(1);
    let x = Tensor::zeros(count, DType::F32, rank.device())?;
    let calls = (MEASURED_BYTES / bytes.max(1)).clamp(1, MOST_CALLS);
    let mut best = Duration::MAX;
    rank.all_reduce(&x, Reduce::Sum)?;
    for _ in 0..REPEATS {
        rank.barrier()?;
        let begin = Instant::now();
        for _ in 0..calls {
            rank.all_reduce(&x, Reduce::Sum)?;
        }
        rank.device().synchronize()?;
        best = best.min(begin.elapsed() / calls as u32);
    }
    rank.check()?;
    Ok(best)
}
