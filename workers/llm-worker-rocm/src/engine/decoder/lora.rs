//! Adapters beside matrices: products that are added for the rows of a pass that want them.

use super::input::Input;
use super::linear::Weight;
use crate::adapters::Adapter;
use crate::engine::api::AdapterUse;
use crate::engine::forward::Step;
use candle_core::quantized::GgmlDType;
use candle_core::{bail, DType, Device, Result, Tensor};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Which rows of the passes that come want which adapters; all matrices of a model share it.
#[derive(Default)]
pub(super) struct Active(Mutex<Arc<Vec<Group>>>);

/// Rows of one adapter.
struct Group {
    adapter: usize,
    scale: f64,
    /// Rows of the whole pass.
    total: usize,
    /// u32, `(rows)`; none for all.
    rows: Option<Tensor>,
}

impl Active {
    /// Whether no row wants an adapter.
    pub(super) fn is_empty(&self) -> bool {
        self.groups().is_empty()
    }

    fn groups(&self) -> Arc<Vec<Group>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes what the sequences of a step want, in their order.
    ///
    /// # Errors
    /// For an adapter beyond `count`.
    pub(super) fn set(
        &self,
        step: &Step,
        uses: &[Arc<[AdapterUse]>],
        count: usize,
        device: &Device,
    ) -> Result<()> {
        let total = step.tokens.len();
        let mut wanted: Vec<(AdapterUse, Vec<u32>)> = Vec::new();
        let mut start = 0;
        for (sequence, uses) in step.sequences.iter().zip(uses) {
            let rows = start..start + sequence.rows as u32;
            start = rows.end;
            for wish in uses.iter().filter(|wish| wish.scale != 0.0) {
                if wish.adapter >= count {
                    bail!("adapter {} of {count}", wish.adapter)
                }
                match wanted.iter_mut().find(|(known, _)| known == wish) {
                    Some((_, all)) => all.extend(rows.clone()),
                    None => wanted.push((*wish, rows.clone().collect())),
                }
            }
        }
        let group = |(wish, rows): (AdapterUse, Vec<u32>)| {
            let part = rows.len() < total;
            Ok(Group {
                adapter: wish.adapter,
                scale: wish.scale.into(),
                total,
                rows: part.then(|| Tensor::new(rows, device)).transpose()?,
            })
        };
        let groups = wanted.into_iter().map(group).collect::<Result<Vec<_>>>()?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(groups);
        Ok(())
    }
}

/// What adapters add to one matrix.
pub(super) struct MatrixAdapters {
    active: Arc<Active>,
    /// One for each adapter.
    parts: Vec<Option<Narrow>>,
}

/// Two narrow matrices: from the inputs to the rank, and on to the outputs.
struct Narrow {
    down: Weight,
    up: Weight,
}

impl MatrixAdapters {
    /// Whether a pass of now adds something.
    pub(super) fn is_active(&self) -> bool {
        let groups = self.active.groups();
        groups
            .iter()
            .any(|group| self.parts[group.adapter].is_some())
    }

    /// `y` `(rows, outputs)` with what the adapters make of `x`.
    pub(super) fn add(&self, mut y: Tensor, x: &Input) -> Result<Tensor> {
        for group in self.active.groups().iter() {
            let Some(narrow) = &self.parts[group.adapter] else {
                continue;
            };
            if x.floats.dim(0)? != group.total {
                bail!(
                    "adapters for {} rows meet {}",
                    group.total,
                    x.floats.dim(0)?
                )
            }
            let of_rows = match &group.rows {
                Some(rows) => x.floats.index_select(rows, 0)?,
                None => x.floats.clone(),
            };
            let added = narrow
                .up
                .forward(&narrow.down.forward(&of_rows.into())?.into())?;
            let added = (added * group.scale)?.to_dtype(y.dtype())?;
            y = match &group.rows {
                Some(rows) => y.index_add(rows, &added, 0)?,
                None => (y + added)?,
            };
        }
        Ok(y)
    }
}

/// Some rows of a tensor, by its name without `.weight`.
pub(super) struct Rows<'a> {
    pub tensor: &'a str,
    pub range: Range<usize>,
}

/// The adapters of a model while it is loaded.
pub(super) struct Attached<'a> {
    adapters: &'a [Adapter],
    active: Arc<Active>,
    /// Tensors that have found their matrices.
    seen: Mutex<BTreeSet<String>>,
}

impl<'a> Attached<'a> {
    pub(super) fn new(adapters: &'a [Adapter], active: Arc<Active>) -> Self {
        Self {
            adapters,
            active,
            seen: Mutex::default(),
        }
    }

    /// What belongs to a matrix that is made of these rows behind each other.
    pub(super) fn of(
        &self,
        rows: &[Rows],
        inputs: usize,
        device: &Device,
        activations: DType,
    ) -> Result<Option<Arc<MatrixAdapters>>> {
        let parts = self.adapters.iter().map(|adapter| {
            let found: Vec<_> = rows
                .iter()
                .map(|rows| adapter.parts.get(rows.tensor))
                .collect();
            let rank: usize = found.iter().flatten().map(|part| part.rank).sum();
            if rank == 0 {
                return Ok(None);
            }
            let outputs: usize = rows.iter().map(|rows| rows.range.len()).sum();
            let mut down = Vec::with_capacity(rank * inputs);
            // Each tensor's rows of it have a place of their own in both.
            let mut up = vec![0f32; outputs * rank];
            let (mut row, mut column) = (0, 0);
            for (rows, part) in rows.iter().zip(&found) {
                if let Some(part) = part {
                    self.see(rows.tensor);
                    if part.inputs != inputs || rows.range.end > part.outputs {
                        bail!("an adapter's {} does not fit the matrix", rows.tensor)
                    }
                    down.extend_from_slice(&part.a);
                    for (i, from) in rows.range.clone().enumerate() {
                        let to = (row + i) * rank + column;
                        let from = &part.b[from * part.rank..(from + 1) * part.rank];
                        up[to..to + part.rank].copy_from_slice(from);
                    }
                    column += part.rank;
                }
                row += rows.range.len();
            }
            let weight = |values: &[f32], shape| {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                Weight::new(&bytes, GgmlDType::F32, shape, device, activations)
            };
            Ok(Some(Narrow {
                down: weight(&down, (rank, inputs))?,
                up: weight(&up, (outputs, rank))?,
            }))
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let some = parts.iter().any(Option::is_some);
        Ok(some.then(|| {
            Arc::new(MatrixAdapters {
                active: self.active.clone(),
                parts,
            })
        }))
    }

    fn see(&self, tensor: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(tensor.to_string());
    }

    /// An adapter and a tensor of it that belongs to no matrix of the model.
    pub(super) fn unused(&self) -> Option<(&'a Adapter, &'a str)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.adapters.iter().find_map(|adapter| {
            let mut names = adapter.parts.keys();
            let name = names.find(|name| !seen.contains(*name))?;
            Some((adapter, name.as_str()))
        })
    }
}
