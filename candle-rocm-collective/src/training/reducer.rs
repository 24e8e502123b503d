//! Averages of gradients, in buckets.

use crate::{Communicator, Error, Pending, Reduce};
use candle::backprop::GradStore;
use candle::{DType, Result, Tensor, TensorId, Var};
use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};

/// How large a bucket is unless told otherwise: small enough that several are on their way, large enough that each uses
/// the connection well. That of PyTorch's `DistributedDataParallel`.
pub const BUCKET_BYTES: usize = 25 << 20;

/// Averages the gradients of all ranks. They come in by blocks, from the last one to the first, are collected in
/// buckets, and each bucket is reduced as soon as it is full, beside what is computed meanwhile. From the first
/// [`add`](Reducer::add) to [`finish`](Reducer::finish) nobody else makes calls on the communicator.
#[derive(Debug)]
pub struct Reducer {
    rank: Communicator,
    /// What a rank's gradients count: its part of the batch.
    share: f64,
    /// By block, in the order of the forward pass: its variables.
    blocks: Vec<Vec<Var>>,
    buckets: Vec<Bucket>,
    /// Gradients that are not in a bucket yet.
    found: HashMap<TensorId, Tensor>,
    /// The block whose gradients come next, and those before it.
    left: usize,
    started: Vec<Started>,
    worker: Option<Worker>,
}

/// Gradients that are reduced together: of one dtype, in the order in which they become known.
#[derive(Debug)]
struct Bucket {
    variables: Vec<Var>,
    /// The block after which it is full.
    after: usize,
}

#[derive(Debug)]
enum Started {
    Pending(Pending),
    /// The worker has it.
    Handed,
}

/// A thread that reduces where the backend has no other way to do so beside the computation.
#[derive(Debug)]
struct Worker {
    give: Sender<Tensor>,
    take: Receiver<Result<Tensor>>,
}

impl Worker {
    fn new(rank: Communicator) -> Self {
        let (give, work) = mpsc::channel::<Tensor>();
        let (done, take) = mpsc::channel();
        // Ends when the reducer is dropped.
        std::thread::spawn(move || {
            for bucket in work {
                if done.send(rank.all_reduce(&bucket, Reduce::Sum)).is_err() {
                    return;
                }
            }
        });
        Self { give, take }
    }
}

impl Reducer {
    /// Averages the gradients of these variables, which are listed by block in the order of the forward pass, the same
    /// on all ranks. A variable that several blocks use is listed in each. A network that is not divided is one block.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no variable, or one that is on another device.
    pub fn new(rank: Communicator, blocks: Vec<Vec<Var>>, bucket_bytes: usize) -> Result<Self> {
        // The block after which a variable's gradient is complete: the first one that uses it.
        let mut complete_after = HashMap::new();
        for (number, variables) in blocks.iter().enumerate().rev() {
            for variable in variables {
                if !variable.device().same_device(rank.device()) {
                    let reason = format!(
                        "a variable of shape {:?} is on {:?}, rank {} on {:?}",
                        variable.shape(),
                        variable.device().location(),
                        rank.rank(),
                        rank.device().location()
                    );
                    let op = "Reducer::new";
                    return Err(Error::InvalidArgument { op, reason }.into());
                }
                complete_after.insert(variable.id(), number);
            }
        }
        let buckets = buckets(&blocks, &complete_after, bucket_bytes);
        if buckets.is_empty() {
            let (op, reason) = ("Reducer::new", "there is no variable to train".to_string());
            return Err(Error::InvalidArgument { op, reason }.into());
        }
        let worker =
            (rank.size() > 1 && !rank.runs_in_background()).then(|| Worker::new(rank.clone()));
        Ok(Self {
            share: 1.0 / rank.size() as f64,
            left: blocks.len(),
            rank,
            blocks,
            buckets,
            found: HashMap::new(),
            started: Vec::new(),
            worker,
        })
    }

    /// What this rank's gradients count, if batches are not of one size: its rows by all ranks' rows, if the loss is a
    /// mean over rows. The shares of all ranks add up to 1.
    pub fn set_share(&mut self, share: f64) {
        self.share = share;
    }

    /// What this rank's gradients count.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Every variable once.
    pub fn variables(&self) -> Vec<Var> {
        let variables = self.buckets.iter().flat_map(|bucket| &bucket.variables);
        variables.cloned().collect()
    }

    /// Takes the gradients of a block, which come from the last block to the first, and begins to reduce what is
    /// complete.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another block than the next one, [`Error`] of the ranks.
    pub fn add(&mut self, block: usize, mut gradients: GradStore) -> Result<()> {
        if block + 1 != self.left {
            let op = "Reducer::add";
            let reason = match self.left {
                0 => format!("block {block} again: all blocks have come, `finish` is next"),
                next => format!(
                    "block {block}: block {} is next, they come from the last to the first",
                    next - 1
                ),
            };
            return Err(Error::InvalidArgument { op, reason }.into());
        }
        self.left = block;
        for variable in &self.blocks[block] {
            let Some(gradient) = gradients.remove(variable) else {
                continue;
            };
            let before = self.found.remove(&variable.id());
            let sum = match before {
                Some(before) => (before + gradient)?,
                None => gradient,
            };
            self.found.insert(variable.id(), sum);
        }
        while self
            .buckets
            .get(self.started.len())
            .is_some_and(|bucket| bucket.after >= block)
        {
            self.start()?;
        }
        Ok(())
    }

    /// Takes the gradients of all blocks, which come from one backward pass, instead of [`add`](Reducer::add) for each.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] between the blocks, [`Error`] of the ranks.
    pub fn add_whole(&mut self, mut gradients: GradStore) -> Result<()> {
        if self.left != self.blocks.len() {
            let op = "Reducer::add_whole";
            let reason = "some blocks have come already".to_string();
            return Err(Error::InvalidArgument { op, reason }.into());
        }
        self.left = 0;
        for variable in self.buckets.iter().flat_map(|bucket| &bucket.variables) {
            if let Some(gradient) = gradients.remove(variable) {
                self.found.insert(variable.id(), gradient);
            }
        }
        while self.started.len() < self.buckets.len() {
            self.start()?;
        }
        Ok(())
    }

    /// Begins to reduce the next bucket.
    fn start(&mut self) -> Result<()> {
        let bucket = &self.buckets[self.started.len()];
        let flat = bucket.variables.iter().map(|variable| {
            // Another rank may have used it.
            match self.found.remove(&variable.id()) {
                Some(gradient) => gradient.flatten_all(),
                None => variable.zeros_like()?.flatten_all(),
            }
        });
        let flat = Tensor::cat(&flat.collect::<Result<Vec<_>>>()?, 0)?;
        let flat = (flat * self.share)?.detach();
        let started = match &self.worker {
            None => Started::Pending(self.rank.start_all_reduce(&flat, Reduce::Sum)?),
            Some(worker) => {
                // A worker that has ended says so when it is waited for.
                let _ = worker.give.send(flat);
                Started::Handed
            }
        };
        self.started.push(started);
        Ok(())
    }

    /// Waits for all buckets: the averages by variable, the same bits on all ranks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if not all blocks have come, [`Error`] of the ranks.
    pub fn finish(&mut self) -> Result<GradStore> {
        if self.left != 0 {
            let (op, reason) = (
                "Reducer::finish",
                format!("blocks 0 to {} have not come", self.left - 1),
            );
            return Err(Error::InvalidArgument { op, reason }.into());
        }
        self.left = self.blocks.len();
        self.found.clear();
        let mut averages = GradStore::default();
        let started = std::mem::take(&mut self.started);
        for (bucket, started) in self.buckets.iter().zip(started) {
            let sum = match (started, &self.worker) {
                (Started::Pending(pending), _) => pending.wait()?,
                (Started::Handed, Some(worker)) => match worker.take.recv() {
                    Ok(sum) => sum?,
                    Err(_) => {
                        candle::bail!("the thread that reduces gradients has ended in a panic")
                    }
                },
                (Started::Handed, None) => candle::bail!("a bucket was handed to nobody"),
            };
            let mut offset = 0;
            for variable in &bucket.variables {
                let count = variable.elem_count();
                let average = sum.narrow(0, offset, count)?.reshape(variable.shape())?;
                averages.insert(variable, average);
                offset += count;
            }
        }
        Ok(averages)
    }

    /// The communicator, between [`finish`](Reducer::finish) and the next [`add`](Reducer::add).
    pub fn communicator(&self) -> &Communicator {
        &self.rank
    }
}

/// Variables in buckets, in the order in which their gradients become known.
fn buckets(
    blocks: &[Vec<Var>],
    complete_after: &HashMap<TensorId, usize>,
    bucket_bytes: usize,
) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    // By dtype: the bucket that is being filled, and its bytes.
    let mut open: HashMap<DType, (Bucket, usize)> = HashMap::new();
    let mut seen = std::collections::HashSet::new();
    for (number, variables) in blocks.iter().enumerate().rev() {
        for variable in variables {
            let is_complete = complete_after.get(&variable.id()) == Some(&number);
            if !is_complete || !variable.dtype().is_float() || !seen.insert(variable.id()) {
                continue;
            }
            let bytes = variable.elem_count() * variable.dtype().size_in_bytes();
            let empty = || Bucket {
                variables: Vec::new(),
                after: number,
            };
            let (bucket, filled) = open.entry(variable.dtype()).or_insert_with(|| (empty(), 0));
            bucket.variables.push(variable.clone());
            bucket.after = number;
            *filled += bytes;
            if *filled >= bucket_bytes {
                buckets.extend(open.remove(&variable.dtype()).map(|(bucket, _)| bucket));
            }
        }
    }
    // In an order that is the same on all ranks.
    let mut rest: Vec<Bucket> = open.into_values().map(|(bucket, _)| bucket).collect();
    rest.sort_by_key(|bucket| bucket.variables[0].dtype().as_str());
    buckets.extend(rest);
    // They are begun in order, so that one that is full later holds up those behind it.
    buckets.sort_by_key(|bucket| std::cmp::Reverse(bucket.after));
    buckets
}
