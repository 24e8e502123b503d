//! Graphs of steps: recorded, compared with what they stand for, and given up where they cannot be had.
//!
//! There are releases of ROCm whose graphs compute something else than the launches that were recorded, now and then
//! and without a word. So before a token of a graph reaches anybody, its shape is computed both ways on the same
//! numbers: steps can be repeated, since they write the same keys to the same places, and leave recurrent states as they
//! are when they are tried out.

use super::decode::{in_memory, rocm, ChosenOnDevice, Prepared};
use super::network::Network;
use candle_core::rocm_backend::candle_rocm::config::Verify;
use candle_core::rocm_backend::candle_rocm::{self, Capture, Graph};
use candle_core::{DType, Error, Result, Tensor};
use candle_rocm_flash_attn::paged::Rotary;
use worker::graphs::{make_room, Refusal};

/// How much of a reason a refusal is; 0 is none.
fn weight(refusal: &Refusal) -> u16 {
    match refusal {
        Refusal::Memory(_) => 1,
        Refusal::Room(_) => 2,
        Refusal::Failed(_) => 3,
        Refusal::Differs(_) => 4,
    }
}

/// The same on the other GPUs of a model.
fn of_another(weight: u16) -> Refusal {
    let why = "another GPU of the model could not have a graph";
    match weight {
        1 => Refusal::Memory(Error::msg(why)),
        2 => Refusal::Room(0),
        3 => Refusal::Failed(Error::msg(why)),
        _ => Refusal::Differs(format!("{why} that computes what its launches do")),
    }
}

impl Network {
    /// What has come of a graph, if the same has on all GPUs that share the model; else the weightiest refusal, so that
    /// all go on in the same way.
    fn all_or_none<T>(
        &self,
        own: std::result::Result<T, Refusal>,
    ) -> std::result::Result<T, Refusal> {
        let Some(shard) = &self.shard else { return own };
        let own_weight = own.as_ref().err().map_or(0, weight);
        let weightiest = shard.largest(own_weight)?;
        match own_weight == weightiest {
            true => own,
            false => Err(of_another(weightiest)),
        }
    }

    /// The result of something that the GPUs of a model do together: where one fails in the midst of it, the others wait
    /// for it, and it may not begin anew.
    fn together<T>(&self, own: Result<T>) -> Result<T> {
        if let (Some(shard), Err(error)) = (&self.shard, &own) {
            shard.communicator.abort(&error.to_string());
        }
        own
    }
}

/// A graph, and what it reads and writes.
pub(super) struct Recorded {
    graph: Graph,
    /// Logits, or what the next stage goes on with.
    pub(super) left: Vec<Tensor>,
    _chosen: Option<ChosenOnDevice>,
    /// The network's own may have been replaced by longer ones.
    _tables: [Option<Rotary>; 2],
    _temperatures: Option<Tensor>,
}

/// What a pass of a head begins with, and overwrites: hidden states. Steps of the model have no such thing.
pub(super) struct Begin(Option<Tensor>);

impl Begin {
    /// What is there now.
    pub(super) fn of(shape: &Prepared, network: &Network) -> Result<Self> {
        Ok(Self(match shape.is_of_head() {
            true => Some(network.hidden.shared()?.copy()?),
            false => None,
        }))
    }

    /// Puts it back, so that the pass can be repeated.
    pub(super) fn restore(&self, network: &Network) -> Result<()> {
        match &self.0 {
            Some(hidden) => network.hidden.shared()?.slice_set(hidden, 0, 0),
            None => Ok(()),
        }
    }
}

/// What a step computes, bit by bit, the padding left out.
#[derive(PartialEq)]
struct Found {
    left: Vec<u32>,
    tokens: Vec<u32>,
    /// What `left` is, in words.
    what: &'static str,
}

impl Found {
    /// Waits for a step.
    fn read(shape: &Prepared, network: &Network, left: &[Tensor], rows: usize) -> Result<Self> {
        shape.exchange.mark()?;
        let tokens = shape.exchange.receive(rows)?;
        let mut found = Self {
            left: Vec::new(),
            tokens,
            what: match network.part.is_last() {
                true => "logits",
                false => "numbers",
            },
        };
        for tensor in left {
            let numbers = tensor.narrow(0, 0, rows)?.flatten_all()?;
            let numbers = numbers.to_dtype(DType::F32)?.to_vec1::<f32>()?;
            found.left.extend(numbers.into_iter().map(f32::to_bits));
        }
        Ok(found)
    }

    /// In what another one differs, in words.
    fn difference(&self, other: &Self) -> Option<String> {
        if self == other {
            return None;
        }
        let count = |a: &[u32], b: &[u32]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        Some(format!(
            "{} of {} {} and {} of {} tokens of a graph differ from those of its launches",
            count(&self.left, &other.left),
            self.left.len(),
            self.what,
            count(&self.tokens, &other.tokens),
            self.tokens.len()
        ))
    }
}

impl Recorded {
    /// Records the launches of a shape, and compares what its graph and they compute for a step of so many sequences.
    pub(super) fn make(
        shape: &Prepared,
        network: &mut Network,
        words: &[u32],
        rows: usize,
        begin: &Begin,
    ) -> std::result::Result<Self, Refusal> {
        let device = rocm(&network.device)?.device().clone();
        let words = &shape.without_writing_states(words);
        // Also loads what the recording needs.
        shape.send(words)?;
        let left = shape.compute(network);
        let expected = left.and_then(|left| {
            shape.end(network, &left)?;
            Found::read(shape, network, &left, rows)
        });
        let expected = network.together(expected)?;
        let recorded = match make_room(&device) {
            Ok(()) => Self::record(shape, network, &device).map_err(Refusal::from),
            Err(refusal) => Err(refusal),
        };
        let recorded = network.all_or_none(recorded)?;
        if device.config().verify == Verify::Off {
            return Ok(recorded);
        }
        let found = recorded.try_out(shape, network, words, rows, begin);
        let found = match network.together(found)?.difference(&expected) {
            None => Ok(recorded),
            Some(difference) => Err(Refusal::Differs(difference)),
        };
        network.all_or_none(found)
    }

    /// Computes a step of so many sequences by the graph.
    fn try_out(
        &self,
        shape: &Prepared,
        network: &Network,
        words: &[u32],
        rows: usize,
        begin: &Begin,
    ) -> Result<Found> {
        self.forget(shape, words.len())?;
        shape.send(words)?;
        begin.restore(network)?;
        self.launch()?;
        Found::read(shape, network, &self.left, rows)
    }

    fn record(
        shape: &Prepared,
        network: &mut Network,
        device: &candle_rocm::Device,
    ) -> Result<Self> {
        let capture = Capture::begin(device)?;
        let left = shape.compute(network)?;
        let chosen = shape.end(network, &left)?;
        let graph = capture.end()?;
        tracing::debug!(
            "a graph of {} launches for {:?}",
            graph.recorded(),
            shape.shape
        );
        Ok(Self {
            graph,
            left,
            _chosen: chosen,
            _tables: [&network.tables, &network.local_tables].map(|tables| tables.get().cloned()),
            _temperatures: network.temperatures.get().cloned(),
        })
    }

    /// Overwrites what a graph reads and writes, so that nothing from before passes for its work.
    fn forget(&self, shape: &Prepared, words: usize) -> Result<()> {
        shape.send(&vec![0; words])?;
        shape.exchange.forget()?;
        for tensor in &self.left {
            in_memory(tensor, |memory| {
                let nothing = vec![0xff; memory.len()];
                Ok(memory.device().upload_into(&nothing, memory, 0)?)
            })?;
        }
        Ok(())
    }

    /// Enqueues it.
    pub(super) fn launch(&self) -> Result<()> {
        // SAFETY: weights, caches and shared hidden states are the decoder's, which holds the shapes; the numbers of the
        // shape and what is exchanged with the host live in the shape, which holds this; the rest is here.
        unsafe { self.graph.launch()? };
        Ok(())
    }
}
