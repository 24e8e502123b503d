//! Steps of one new token for each sequence on a GPU.
//!
//! They are padded to a few shapes: sequences to the next power of two, room for keys to another. Whatever differs
//! between two steps of a shape lies in one buffer that is written before each, and launches depend on the shape alone,
//! so they can be recorded once and from then on be enqueued as one graph. Without graphs the same launches are made
//! one by one: the tokens are the same.

use super::network::Network;
use crate::engine::forward::{DecodeOutput, Decoded, SampleParams, Step};
use crate::engine::sampling::choice;
use candle_core::op::BackpropOp;
use candle_core::rocm_backend::candle_rocm::ops::sampling::{self, Choice};
use candle_core::rocm_backend::candle_rocm::{Capture, Graph};
use candle_core::rocm_backend::RocmDevice;
use candle_core::{bail, DType, Device, Result, RocmStorage, Storage, Tensor};
use candle_rocm_flash_attn::paged::{DecodeShape, PagedBatch, PagedSequence, Rotary};
use std::ops::Deref;

/// Room for keys that a shape has at least: attention to so many is not split.
const LEAST_KEYS: usize = 128;
/// Up to so many sequences a shape has a power of two, beyond a multiple of this.
const POWERS: usize = 16;
/// Shapes that are kept, the last used ones: each holds the memory of its activations.
const MOST_SHAPES: usize = 16;

/// The shapes that have come so far.
#[derive(Default)]
pub(super) struct Decoding {
    /// Whether graphs are wanted, and none has failed.
    graphs: bool,
    /// The last used one at the end.
    shapes: Vec<Prepared>,
    words: Vec<u32>,
}

/// A shape, and what its launches read.
struct Prepared {
    shape: DecodeShape,
    /// Tokens, choices and the batch's numbers behind each other, u32.
    inputs: Tensor,
    batch: PagedBatch,
    /// Whether a step has run: its kernels are compiled and loaded, and tables have grown.
    warm: bool,
    graph: Option<Recorded>,
}

/// A graph, and what it reads and writes.
struct Recorded {
    graph: Graph,
    logits: Tensor,
    tokens: Tensor,
    /// The network's own may have been replaced by longer ones.
    _tables: [Option<Rotary>; 2],
}

fn shape_of(step: &Step, block_size: usize) -> DecodeShape {
    let sequences = step.sequences.len();
    let longest = step.sequences.iter().map(|s| s.keys).max().unwrap_or(0);
    DecodeShape {
        sequences: if sequences <= POWERS {
            sequences.next_power_of_two()
        } else {
            sequences.next_multiple_of(POWERS)
        },
        capacity: longest.next_power_of_two().max(LEAST_KEYS),
        block_size,
    }
}

fn rocm(device: &Device) -> Result<&RocmDevice> {
    match device {
        Device::Rocm(device) => Ok(device),
        _ => bail!("steps of a shape are for ROCm devices"),
    }
}

impl Decoding {
    /// Forgets all shapes, for a cache that is replaced.
    pub(super) fn clear(&mut self) {
        self.shapes.clear();
    }

    pub(super) fn set_graphs(&mut self, on: bool) {
        self.graphs = on;
        self.clear();
    }

    /// See [`Forward::decode`](crate::engine::forward::Forward::decode).
    pub(super) fn step(
        &mut self,
        network: &mut Network,
        step: &Step,
        samples: Option<&[SampleParams]>,
    ) -> Result<Decoded> {
        let mut prepared = self.take(network, shape_of(step, network.block_size))?;
        let result = self.run(&mut prepared, network, step, samples);
        if self.shapes.len() == MOST_SHAPES {
            self.shapes.remove(0);
        }
        self.shapes.push(prepared);
        result
    }

    fn take(&mut self, network: &Network, shape: DecodeShape) -> Result<Prepared> {
        match self.shapes.iter().position(|p| p.shape == shape) {
            Some(index) => Ok(self.shapes.remove(index)),
            None => Prepared::new(shape, &network.device),
        }
    }

    fn run(
        &mut self,
        prepared: &mut Prepared,
        network: &mut Network,
        step: &Step,
        samples: Option<&[SampleParams]>,
    ) -> Result<Decoded> {
        prepared.write(network, step, samples, &mut self.words)?;
        let rows = step.sequences.len();
        if self.graphs && prepared.warm {
            match prepared.replay(network) {
                Ok(recorded) => {
                    let output = match samples {
                        Some(_) => DecodeOutput::Tokens(recorded.tokens.narrow(0, 0, rows)?),
                        None => DecodeOutput::Logits(recorded.logits.narrow(0, 0, rows)?),
                    };
                    return Ok(Decoded {
                        output,
                        graph: true,
                    });
                }
                // What is wrong with the device shows below.
                Err(error) => {
                    tracing::warn!("decoding goes on without graphs, more slowly: {error}");
                    self.graphs = false;
                    prepared.graph = None;
                    self.shapes.iter_mut().for_each(|p| p.graph = None);
                }
            }
        }
        let logits = prepared.compute(network)?;
        prepared.warm = true;
        let output = match samples {
            Some(_) => DecodeOutput::Tokens(prepared.choose(&logits)?.narrow(0, 0, rows)?),
            None => DecodeOutput::Logits(logits.narrow(0, 0, rows)?),
        };
        Ok(Decoded {
            output,
            graph: false,
        })
    }
}

impl Prepared {
    fn new(shape: DecodeShape, device: &Device) -> Result<Self> {
        let before = shape.sequences * (1 + Choice::WORDS);
        let inputs = Tensor::zeros(before + shape.numbers(), DType::U32, device)?;
        Ok(Self {
            batch: shape.batch(&inputs.narrow(0, before, shape.numbers())?)?,
            shape,
            inputs,
            warm: false,
            graph: None,
        })
    }

    /// Writes the numbers of a step to the device.
    fn write(
        &self,
        network: &Network,
        step: &Step,
        samples: Option<&[SampleParams]>,
        words: &mut Vec<u32>,
    ) -> Result<()> {
        let n = self.shape.sequences;
        words.clear();
        words.extend_from_slice(&step.tokens);
        words.resize(n, 0);
        let samples = samples.unwrap_or_default().iter();
        words.extend(samples.flat_map(|sample| choice(sample.options, sample.position).words()));
        words.resize(n * (1 + Choice::WORDS), 0);
        let blocks = network.caches.first().map_or(0, |c| c.shape().blocks);
        let sequences = step.paged();
        let outside = |s: &PagedSequence| s.blocks.iter().any(|block| *block as usize >= blocks);
        if sequences.iter().any(outside) {
            bail!("a sequence has a block beyond the {blocks} of the cache")
        }
        self.shape.write(&sequences, words)?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (storage, _) = self.inputs.storage_and_layout();
        let Storage::Rocm(storage) = storage.deref() else {
            bail!("the numbers of a shape are not on its device")
        };
        let buffer = storage.buffer();
        Ok(buffer.device().upload_into(&bytes, buffer, 0)?)
    }

    /// Enqueues the forward pass: logits of all rows, the padding's included.
    fn compute(&self, network: &mut Network) -> Result<Tensor> {
        let ids = self.inputs.narrow(0, 0, self.shape.sequences)?;
        let mut stream = network.run(&ids, &self.batch)?;
        let hidden = stream.normed(&network.norm, network.output.takes_quantized())?;
        network.logits(&hidden)?.contiguous()
    }

    /// Enqueues the choice of tokens.
    fn choose(&self, logits: &Tensor) -> Result<Tensor> {
        let device = rocm(logits.device())?;
        let (storage, layout) = logits.storage_and_layout();
        let (inputs, _) = self.inputs.storage_and_layout();
        let (Storage::Rocm(storage), Storage::Rocm(inputs)) = (storage.deref(), inputs.deref())
        else {
            bail!("logits and choices are on different devices")
        };
        let view = storage.view(layout, "sampling")?;
        let rows = self.shape.sequences;
        let start = rows * size_of::<u32>();
        let tokens = sampling::choose_by(device.device(), &view, inputs.buffer(), start)?;
        let tokens = RocmStorage::new(tokens, device.clone(), DType::U32, rows);
        Ok(Tensor::from_storage(
            Storage::Rocm(tokens),
            rows,
            BackpropOp::none(),
            false,
        ))
    }

    /// Enqueues the graph, which is recorded first if there is none.
    fn replay(&mut self, network: &mut Network) -> Result<&Recorded> {
        if self.graph.is_none() {
            self.graph = Some(self.record(network)?);
        }
        let recorded = self.graph.as_ref().expect("made above");
        // SAFETY: weights and caches are the decoder's, which is here; the numbers of the shape live in `self`, the
        // rest with the recording.
        unsafe { recorded.graph.launch()? };
        Ok(recorded)
    }

    fn record(&self, network: &mut Network) -> Result<Recorded> {
        let device = rocm(&network.device)?.clone();
        let capture = Capture::begin(device.device())?;
        let logits = self.compute(network)?;
        let tokens = self.choose(&logits)?;
        let graph = capture.end()?;
        tracing::debug!(
            "a graph of {} launches for {:?}",
            graph.recorded(),
            self.shape
        );
        Ok(Recorded {
            graph,
            logits,
            tokens,
            _tables: [&network.tables, &network.local_tables].map(|tables| tables.get().cloned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::forward::StepSequence;

    #[test]
    fn shapes_are_few() {
        let shape = |sequences: usize, keys: usize| {
            let sequence = |id: usize| StepSequence {
                id: id as u64,
                blocks: Vec::new(),
                keys: if id == 0 { keys } else { 1 },
                rows: 1,
            };
            let step = Step {
                sequences: (0..sequences).map(sequence).collect(),
                ..Step::default()
            };
            let shape = shape_of(&step, 16);
            (shape.sequences, shape.capacity)
        };
        assert_eq!(shape(1, 1), (1, 128));
        assert_eq!(shape(3, 128), (4, 128));
        assert_eq!(shape(8, 129), (8, 256));
        assert_eq!(shape(9, 5000), (16, 8192));
        assert_eq!(shape(17, 1), (32, 128));
        assert_eq!(shape(33, 1), (48, 128));
    }
}
