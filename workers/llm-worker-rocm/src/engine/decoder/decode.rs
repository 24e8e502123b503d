//! Steps of few new tokens for each sequence on a GPU: mostly one, and guesses behind it.
//!
//! A row is a sequence of its own to attention, with the keys up to its own. Steps are padded to a few shapes: rows to
//! the next power of two, room for keys to another. Whatever differs between two steps of a shape lies in one buffer
//! that a kernel writes before each, and launches depend on the shape alone, so they can be recorded once and from then on be enqueued as one graph. Its last kernel leaves the chosen
//! tokens where the host reads them: a step is one launch, one graph and one event. Without graphs the same launches
//! are made one by one: the tokens are the same.

use super::crossing::Passed;
use super::graphs::{Begin, Recorded};
use super::input::Wanted;
use super::lora::Scales;
use super::memory::{StateBatch, NO_STATE};
use super::model::LeftOfDecode;
use super::network::Network;
use crate::engine::api::GraphUse;
use crate::engine::forward::{
    Answer, DecodeOutput, Decoded, HeadOutput, HeadStep, HiddenRows, Predicted, SampleParams, Step,
};
use crate::engine::sampling::choice;
use crate::engine::shard::Shard;
use candle_core::op::BackpropOp;
use candle_core::rocm_backend::candle_rocm::ops::exchange::Exchange;
use candle_core::rocm_backend::candle_rocm::ops::sampling::{self, Choice};
use candle_core::rocm_backend::candle_rocm::Buffer;
use candle_core::rocm_backend::RocmDevice;
use candle_core::{bail, DType, Device, Result, RocmStorage, Storage, Tensor};
use candle_rocm_flash_attn::paged::{DecodeShape, PagedBatch, PagedSequence};
use std::ops::Deref;
use std::sync::Arc;
use worker::graphs::{Graphs, Tries};

/// Room for keys that a shape has at least: attention to so many is not split.
const LEAST_KEYS: usize = 128;
/// Up to so many rows a shape has a power of two, beyond a multiple of this.
const POWERS: usize = 16;
/// Shapes that are kept, the last used ones: each holds the memory of its activations.
const MOST_SHAPES: usize = 16;

/// The shapes that have come so far.
#[derive(Default)]
pub(super) struct Decoding {
    graphs: Graphs,
    /// The last used one at the end.
    shapes: Vec<Prepared>,
    words: Vec<u32>,
    /// Scales of adapters, if there are adapters.
    scales: Option<Scales>,
}

/// A shape, and what its launches read.
pub(super) struct Prepared {
    /// First, because it goes before what it uses.
    graph: Option<Recorded>,
    tries: Tries,
    pub(super) shape: DecodeShape,
    /// Tokens, choices and the batch's numbers behind each other, u32.
    inputs: Tensor,
    batch: PagedBatch,
    /// That of blocks with a sliding window, if these have a cache of their own.
    windows: Option<PagedBatch>,
    /// Where states come from and go, if the model has states.
    states: Option<StateBatch>,
    /// Rows that a sequence has at most, where that changes launches.
    longest: usize,
    /// The adapters that rows may want, ascending, and for each a place in the table of scales for each row.
    adapters: Vec<usize>,
    /// That table.
    scales: Option<Tensor>,
    /// What a pass of a head has besides; none where the model computes.
    head: Option<OfHead>,
    /// What the stage before has left, where there is one: always the same memory, so that launches of graphs find it.
    arrived: Vec<Tensor>,
    /// Brings the inputs to the device and the chosen tokens back.
    pub(super) exchange: Arc<Exchange>,
    /// Whether a step has run: its kernels are compiled and loaded, and tables have grown.
    warm: bool,
}

/// What a pass of a head has besides.
struct OfHead {
    /// The rows of the hidden states that it begins with.
    rows: Tensor,
    /// 0, 1, 2 and so on, one for each row.
    numbers: Tensor,
    /// Brings the probabilities of the chosen tokens back.
    probabilities: Arc<Exchange>,
}

/// A step, how to choose the tokens behind its rows if that is wanted, and what the stage before has left of it.
pub(super) struct StepOfShape<'a> {
    pub step: &'a Step,
    pub samples: Option<&'a [SampleParams<'a>]>,
    pub arrived: Option<&'a [Tensor]>,
}

/// What was chosen on the device.
pub(super) struct ChosenOnDevice {
    _tokens: Tensor,
    /// Logarithms, of a head's tokens.
    _probabilities: Option<Tensor>,
}

/// What comes of a step.
struct Computed {
    /// Logits, or what the next stage goes on with, of all rows of the shape.
    left: Vec<Tensor>,
    /// Where the host waits for it, where there is such a place.
    answer: Option<Answer>,
    graph: bool,
}

fn shape_of(step: &Step, block_size: usize) -> DecodeShape {
    let sequences = step.tokens.len();
    let positions = step.sequences.iter().map(|s| {
        // Rotary tables go as far as the room for keys does.
        let turned = s.turned.map_or(0, |first| first as usize + s.rows);
        turned.max(s.keys)
    });
    let longest = positions.max().unwrap_or(0);
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

/// Lets rows behind pictures turn by what they do, in the numbers of a batch.
fn turn(step: &Step, shape: &DecodeShape, numbers: &mut [u32]) -> Result<()> {
    let mut row = 0;
    for sequence in &step.sequences {
        for place in 0..sequence.rows {
            if let Some(first) = sequence.turned {
                shape.turn(numbers, row, first as usize + place)?;
            }
            row += 1;
        }
    }
    Ok(())
}

/// Rows of the sequence that has most of them, as a power of two.
fn longest_of(step: &Step) -> usize {
    let rows = step.sequences.iter().map(|s| s.rows).max().unwrap_or(1);
    rows.next_power_of_two()
}

pub(super) fn rocm(device: &Device) -> Result<&RocmDevice> {
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

    pub(super) fn set_graphs(&mut self, graphs: GraphUse, device: &Device) {
        self.graphs = Graphs::new("decoding", graphs, device);
        self.clear();
    }

    /// Has the GPUs that share a model enqueue graphs all, or none of them.
    pub(super) fn agree_on_graphs(&mut self, graphs: GraphUse, shard: &Shard) {
        if graphs == GraphUse::Off {
            return;
        }
        if !shard.communicator.is_capturable() {
            let how = shard.communicator.backend();
            return self.do_without_graphs(format!(
                "GPUs that exchange results by {how:?} need the host in the midst of a step"
            ));
        }
        match shard.largest(u16::from(!self.graphs.are_on())) {
            Ok(0) => {}
            Ok(_) if !self.graphs.are_on() => {}
            Ok(_) => self.do_without_graphs("another GPU of the model has none".to_string()),
            Err(error) => self.do_without_graphs(format!("the GPUs do not agree: {error}")),
        }
    }

    /// Gives graphs up, for this reason.
    pub(super) fn do_without_graphs(&mut self, reason: String) {
        self.graphs.turn_off(reason);
    }

    /// See [`Forward::without_graphs`](crate::engine::forward::Forward::without_graphs).
    pub(super) fn without_graphs(&self) -> Option<&str> {
        self.graphs.off()
    }

    /// See [`Forward::decode`](crate::engine::forward::Forward::decode).
    pub(super) fn step(
        &mut self,
        network: &mut Network,
        of_shape: StepOfShape,
    ) -> Result<LeftOfDecode> {
        let StepOfShape {
            step,
            samples,
            arrived,
        } = of_shape;
        let longest = match network.is_recurrent() {
            true => longest_of(step),
            false => 1,
        };
        let adapters = network.lora.wishes().adapters();
        if !adapters.is_empty() && self.scales.is_none() {
            self.scales = Some(Scales::new(&network.device)?);
        }
        let shape = shape_of(step, network.block_size);
        if !network.heads.is_empty()
            && (network.hidden).make_room(shape.sequences, network.norm.as_ref())?
        {
            // Graphs would leave hidden states where nobody looks.
            self.clear();
        }
        let mut prepared = self.take(network, shape, longest, adapters, false)?;
        let rows: Vec<u32> = (0..step.tokens.len() as u32).collect();
        let computed = prepared
            .write(
                network,
                step,
                (samples, &rows),
                (self.scales.as_mut(), None),
                &mut self.words,
            )
            .and_then(|()| prepared.take(arrived))
            .and_then(|()| self.run(&mut prepared, network, rows.len(), samples.is_some()));
        self.keep(prepared);
        let Computed {
            left,
            answer,
            graph,
        } = computed?;
        let of_rows = left.iter().map(|tensor| tensor.narrow(0, 0, rows.len()));
        let mut left = of_rows.collect::<Result<Vec<_>>>()?;
        if !network.part.is_last() {
            return Ok(LeftOfDecode::Crossing(left, answer));
        }
        let output = match (samples, answer) {
            (Some(_), Some(answer)) => DecodeOutput::Tokens(answer),
            (_, answer) => DecodeOutput::Logits(left.remove(0), answer),
        };
        Ok(LeftOfDecode::Decoded(Decoded { output, graph }))
    }

    /// See [`Forward::predict`](crate::engine::forward::Forward::predict).
    pub(super) fn predict(
        &mut self,
        network: &mut Network,
        step: &HeadStep,
        samples: Option<&[SampleParams]>,
    ) -> Result<Predicted> {
        let HeadStep { step, hidden, .. } = step;
        let (HiddenRows::OfStep(hidden) | HiddenRows::OfHead(hidden)) = hidden;
        let shape = shape_of(step, network.block_size);
        // Heads have no adapters.
        let mut prepared = self.take(network, shape, 1, Vec::new(), true)?;
        let rows = step.tokens.len();
        let outputs = (samples, &step.outputs[..]);
        let computed = prepared
            .write(
                network,
                step,
                outputs,
                (None, Some(hidden)),
                &mut self.words,
            )
            .and_then(|()| self.run(&mut prepared, network, rows, samples.is_some()));
        let probabilities = prepared
            .head
            .as_ref()
            .map(|head| head.probabilities.clone());
        self.keep(prepared);
        let Computed {
            left,
            answer,
            graph,
        } = computed?;
        let output = match (samples, answer, probabilities) {
            (Some(_), Some(tokens), Some(probabilities)) => HeadOutput::Tokens {
                tokens,
                probabilities: Answer::marked(&probabilities, rows)?,
            },
            _ => {
                let outputs = Tensor::new(step.outputs.as_slice(), &network.device)?;
                HeadOutput::Logits(left[0].index_select(&outputs, 0)?)
            }
        };
        Ok(Predicted { output, graph })
    }

    fn take(
        &mut self,
        network: &Network,
        shape: DecodeShape,
        longest: usize,
        adapters: Vec<usize>,
        of_head: bool,
    ) -> Result<Prepared> {
        let known = |p: &Prepared| {
            p.shape == shape
                && p.longest == longest
                && p.adapters == adapters
                && p.head.is_some() == of_head
        };
        match self.shapes.iter().position(known) {
            Some(index) => Ok(self.shapes.remove(index)),
            None => {
                let scales = self.scales.as_ref().map(|scales| scales.table().clone());
                Prepared::new(shape, longest, (adapters, scales), of_head, network)
            }
        }
    }

    fn keep(&mut self, prepared: Prepared) {
        if self.shapes.len() == MOST_SHAPES {
            self.shapes.remove(0);
        }
        self.shapes.push(prepared);
    }

    /// Computes the step whose numbers were written.
    fn run(
        &mut self,
        prepared: &mut Prepared,
        network: &mut Network,
        rows: usize,
        chooses: bool,
    ) -> Result<Computed> {
        let wanted = self.graphs.are_on() && prepared.warm && prepared.graph.is_none();
        if wanted && prepared.tries.go_on() {
            let begin = Begin::of(prepared, network)?;
            match Recorded::make(prepared, network, &self.words, rows, &begin) {
                Ok(recorded) => prepared.graph = Some(recorded),
                // What is wrong with the device shows below.
                Err(refusal) => {
                    self.graphs
                        .refused(refusal, &mut prepared.tries, &network.device);
                }
            }
            begin.restore(network)?;
        }
        prepared.send(&self.words)?;
        let mut replayed = None;
        if let Some(recorded) = &prepared.graph {
            match recorded.launch() {
                Ok(()) => replayed = Some(recorded.left.clone()),
                Err(error) => self
                    .graphs
                    .turn_off(format!("launching one failed: {error}")),
            }
        }
        if !self.graphs.are_on() {
            prepared.graph = None;
            self.shapes.iter_mut().for_each(|p| p.graph = None);
        }
        let graph = replayed.is_some();
        // A stage before the last has no tokens to answer with, but what the device has to say.
        let answers = chooses || !network.part.is_last();
        let left = match replayed {
            Some(left) => left,
            None => {
                let left = prepared.compute(network)?;
                if answers {
                    prepared.end(network, &left)?;
                }
                prepared.warm = true;
                left
            }
        };
        if !network.heads.is_empty() {
            network.hidden.is_left(rows, prepared.head.is_some())?;
        }
        // What the device has to say of bad indices comes with the answer; without one, with the logits.
        let answer = match graph || answers {
            true => Some(Answer::marked(&prepared.exchange, rows)?),
            false => None,
        };
        Ok(Computed {
            left,
            answer,
            graph,
        })
    }
}

impl Prepared {
    fn new(
        shape: DecodeShape,
        longest: usize,
        (adapters, scales): (Vec<usize>, Option<Tensor>),
        of_head: bool,
        network: &Network,
    ) -> Result<Self> {
        let device = &network.device;
        let rows = shape.sequences;
        let head_rows = rows * (1 + Choice::WORDS + adapters.len());
        let before = head_rows + if of_head { rows } else { 0 };
        // Heads have attention, and their caches the blocks of full ones.
        let recurrent = network.is_recurrent() && !of_head;
        let states = if recurrent {
            StateBatch::len(rows, rows)
        } else {
            0
        };
        let windowed = network.window_blocks > 0 && !of_head;
        let batches = shape.numbers() * if windowed { 2 } else { 1 };
        let words = before + batches + states;
        let inputs = Tensor::zeros(words, DType::U32, device)?;
        let exchange = Exchange::new(rocm(device)?.device(), words, shape.sequences)?;
        let batch = |start: usize| shape.batch(&inputs.narrow(0, start, shape.numbers())?);
        let states = inputs.narrow(0, words - states, states)?;
        let states = recurrent.then(|| StateBatch::view(&states, rows, rows, longest));
        let head = || -> Result<OfHead> {
            Ok(OfHead {
                rows: inputs.narrow(0, head_rows, rows)?,
                numbers: Tensor::arange(0, rows as u32, device)?,
                probabilities: Arc::new(Exchange::new(rocm(device)?.device(), 0, rows)?),
            })
        };
        let arrived = match network.part.is_first() || of_head {
            true => Vec::new(),
            false => network.arriving(rows),
        };
        let room = |(shape, dtype): (Vec<usize>, DType)| Tensor::zeros(shape, dtype, device);
        Ok(Self {
            arrived: arrived.into_iter().map(room).collect::<Result<_>>()?,
            head: of_head.then(head).transpose()?,
            graph: None,
            tries: Tries::default(),
            states: states.transpose()?,
            longest,
            adapters,
            scales,
            batch: batch(before)?,
            windows: windowed
                .then(|| batch(before + shape.numbers()))
                .transpose()?,
            shape,
            inputs,
            exchange: Arc::new(exchange),
            warm: false,
        })
    }

    /// Writes the numbers of a step into `words`, with how to choose the tokens of some rows and, of a head, the rows of
    /// hidden states.
    fn write(
        &self,
        network: &Network,
        step: &Step,
        (samples, outputs): (Option<&[SampleParams]>, &[u32]),
        (scales, hidden): (Option<&mut Scales>, Option<&[u32]>),
        words: &mut Vec<u32>,
    ) -> Result<()> {
        let n = self.shape.sequences;
        words.clear();
        words.extend_from_slice(&step.tokens);
        words.resize(n, 0);
        for (sample, row) in samples.unwrap_or_default().iter().zip(outputs) {
            words.resize(n + *row as usize * Choice::WORDS, 0);
            words.extend(choice(sample.options, sample.position).words());
        }
        words.resize(n * (1 + Choice::WORDS), 0);
        if let Some(scales) = scales.filter(|_| !self.adapters.is_empty()) {
            let wishes = network.lora.wishes();
            let factors = self.adapters.iter();
            let factors: Vec<f32> = factors.flat_map(|a| wishes.factors(*a, n)).collect();
            words.extend(scales.places(&factors)?);
        }
        if let Some(hidden) = hidden {
            words.extend_from_slice(hidden);
            words.resize(n * (2 + Choice::WORDS + self.adapters.len()), 0);
        }
        let mut write = |sequences: &[PagedSequence], blocks: usize| {
            let outside = |s: &PagedSequence| s.blocks.iter().any(|b| *b as usize >= blocks);
            if sequences.iter().any(outside) {
                bail!("a sequence has a block beyond the {blocks} of the cache")
            }
            let start = words.len();
            self.shape.write(sequences, words)?;
            turn(step, &self.shape, &mut words[start..])
        };
        write(&step.paged_rows(), network.cache_blocks)?;
        if self.windows.is_some() {
            write(&step.paged_window_rows(), network.window_blocks)?;
        }
        if self.states.is_some() {
            words.extend(StateBatch::words(step, network.slots, n, n)?);
        }
        Ok(())
    }

    /// Takes what the stage before has left of a step's rows.
    fn take(&self, arrived: Option<&[Tensor]>) -> Result<()> {
        let arrived = arrived.unwrap_or_default();
        if arrived.len() != self.arrived.len() {
            bail!(
                "{} tensors came from the stage before, in place of {}",
                arrived.len(),
                self.arrived.len()
            )
        }
        for (room, new) in self.arrived.iter().zip(arrived) {
            room.slice_set(&new.contiguous()?, 0, 0)?;
        }
        Ok(())
    }

    /// The numbers of the same step that leaves no states behind, so that it can be repeated.
    pub(super) fn without_writing_states(&self, words: &[u32]) -> Vec<u32> {
        let mut words = words.to_vec();
        if self.states.is_some() {
            // The states that rows leave come last.
            let start = words.len() - self.shape.sequences;
            words[start..].fill(NO_STATE);
        }
        words
    }

    /// Enqueues that the numbers of a step reach the device.
    pub(super) fn send(&self, words: &[u32]) -> Result<()> {
        in_memory(&self.inputs, |inputs| {
            Ok(self.exchange.send(words, inputs, 0)?)
        })
    }

    /// Enqueues the forward pass: logits of all rows, or what the next stage goes on with, the padding's included.
    pub(super) fn compute(&self, network: &mut Network) -> Result<Vec<Tensor>> {
        let ids = self.inputs.narrow(0, 0, self.shape.sequences)?;
        if let Some(head) = &self.head {
            let logits = network.predict_by_shape(&ids, &head.rows, &self.batch)?;
            return Ok(vec![logits]);
        }
        network.lora.enter_by_factors(self.factors()?);
        let left = self.compute_adapted(network, &ids);
        network.lora.leave();
        left
    }

    /// The factors of each adapter, f32 `(rows, 1)`.
    fn factors(&self) -> Result<Vec<(usize, Tensor)>> {
        let rows = self.shape.sequences;
        let Some(scales) = &self.scales else {
            return Ok(Vec::new());
        };
        let factors = self.adapters.iter().enumerate().map(|(number, adapter)| {
            let start = rows * (1 + Choice::WORDS + number);
            let places = self.inputs.narrow(0, start, rows)?;
            Ok((
                *adapter,
                scales.index_select(&places, 0)?.reshape((rows, 1))?,
            ))
        });
        factors.collect()
    }

    fn compute_adapted(&self, network: &mut Network, ids: &Tensor) -> Result<Vec<Tensor>> {
        let places = (&self.batch, self.windows.as_ref(), self.states.as_ref());
        let arrived = (!self.arrived.is_empty()).then_some(&self.arrived[..]);
        let mut stream = match network.run(ids, places, arrived)? {
            Passed::Stream(stream) => stream,
            Passed::Crossing(crossing) => return Ok(crossing),
        };
        let hidden = stream.normed(
            network.norm()?,
            Wanted::integers(network.output()?.takes_quantized()),
        )?;
        network.share_hidden(&hidden.floats)?;
        Ok(vec![network.logits(&hidden)?.contiguous()?])
    }

    /// Enqueues what comes behind the pass: the choice of tokens, or of a stage before the last that the device says what
    /// was wrong.
    pub(super) fn end(&self, network: &Network, left: &[Tensor]) -> Result<Option<ChosenOnDevice>> {
        if network.part.is_last() {
            return self.choose(&left[0]).map(Some);
        }
        // Words that are no tokens to anybody.
        in_memory(&self.inputs, |inputs| {
            // SAFETY: the exchange goes behind the graph of its shape.
            unsafe { self.exchange.answer(inputs, self.shape.sequences)? };
            Ok(())
        })?;
        Ok(None)
    }

    /// Enqueues the choice of tokens, and that they are handed to the host. Gives them as well.
    fn choose(&self, logits: &Tensor) -> Result<ChosenOnDevice> {
        let device = rocm(logits.device())?;
        let (storage, layout) = logits.storage_and_layout();
        let Storage::Rocm(storage) = storage.deref() else {
            bail!("the logits are not on the device of their shape")
        };
        let view = storage.view(layout, "sampling")?;
        let rows = self.shape.sequences;
        let start = rows * size_of::<u32>();
        let tokens = in_memory(&self.inputs, |inputs| {
            Ok(sampling::choose_by(device.device(), &view, inputs, start)?)
        })?;
        // SAFETY: the exchange goes behind the graph of its shape.
        unsafe { self.exchange.answer(&tokens, rows)? };
        let of_rows = |buffer: Buffer, dtype: DType| {
            let storage = RocmStorage::new(buffer, device.clone(), dtype, rows);
            Tensor::from_storage(Storage::Rocm(storage), rows, BackpropOp::none(), false)
        };
        let probabilities = match &self.head {
            None => None,
            Some(head) => {
                let values = in_memory(&head.numbers, |numbers| {
                    // SAFETY: they count the rows.
                    let values =
                        unsafe { sampling::report_by(device.device(), &view, &tokens, numbers)? };
                    Ok(values)
                })?;
                // SAFETY: as above.
                unsafe { head.probabilities.answer(&values, rows)? };
                Some(of_rows(values, DType::F32))
            }
        };
        Ok(ChosenOnDevice {
            _tokens: of_rows(tokens, DType::U32),
            _probabilities: probabilities,
        })
    }

    /// Whether it is a pass of a head.
    pub(super) fn is_of_head(&self) -> bool {
        self.head.is_some()
    }
}

/// Does something with the memory of a tensor.
pub(super) fn in_memory<T>(tensor: &Tensor, act: impl FnOnce(&Buffer) -> Result<T>) -> Result<T> {
    match tensor.storage_and_layout().0.deref() {
        Storage::Rocm(storage) => act(storage.buffer()),
        _ => bail!("a tensor of a shape is not on its device"),
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
                ..StepSequence::default()
            };
            let step = Step {
                tokens: vec![0; sequences],
                sequences: (0..sequences).map(sequence).collect(),
                outputs: Vec::new(),
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
