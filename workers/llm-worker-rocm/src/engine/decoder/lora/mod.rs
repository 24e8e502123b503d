//! Adapters beside matrices: products that are added for the rows of a pass that want them.

mod active;
mod experts;
mod scales;

pub(super) use active::{Active, Lora};
pub(super) use experts::{ExpertRows, StackAdapters};
pub(super) use scales::Scales;

use super::input::Input;
use super::linear::Weight;
use crate::adapters::{Adapter, EMBEDDING};
use active::{Group, Share};
use candle_core::quantized::GgmlDType;
use candle_core::{bail, DType, Device, Result, Tensor};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// What adapters add to one matrix, or to the table of embeddings.
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
    pub(super) fn add(&self, y: Tensor, x: &Input) -> Result<Tensor> {
        self.add_by(y, &x.floats, |narrow, x| {
            narrow.up.forward(&narrow.down.forward(&x.into())?.into())
        })
    }

    /// Rows of the table of embeddings, `(rows, width)`, with what the adapters have for tokens `ids`.
    pub(super) fn add_rows(&self, y: Tensor, ids: &Tensor) -> Result<Tensor> {
        let dtype = y.dtype();
        self.add_by(y, ids, |narrow, ids| {
            narrow.up.forward(&narrow.down.rows(&ids, dtype)?.into())
        })
    }

    /// `y` with what `product` makes of the rows of `x` that want it.
    fn add_by(
        &self,
        mut y: Tensor,
        x: &Tensor,
        product: impl Fn(&Narrow, Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        for group in self.active.groups().iter() {
            let Some(narrow) = &self.parts[group.adapter] else {
                continue;
            };
            group.check(x.dim(0)?)?;
            y = add(y, group, |rows| match rows {
                Some(rows) => product(narrow, x.index_select(rows, 0)?),
                None => product(narrow, x.clone()),
            })?;
        }
        Ok(y)
    }
}

/// `y` with as much as a group wants of what `product` gives, for some rows or for all.
fn add(
    y: Tensor,
    group: &Group,
    product: impl FnOnce(Option<&Tensor>) -> Result<Tensor>,
) -> Result<Tensor> {
    match &group.share {
        Share::All(scale) => &y + (product(None)? * *scale)?.to_dtype(y.dtype())?,
        Share::Some(rows, scale) => {
            let added = (product(Some(rows))? * *scale)?.to_dtype(y.dtype())?;
            y.index_add(rows, &added, 0)
        }
        Share::Each(factors) => {
            let added = product(None)?;
            // One for all that there is of a row.
            let mut shape = vec![1; added.rank()];
            shape[0] = factors.dim(0)?;
            let factors = factors.reshape(shape)?.to_dtype(added.dtype())?;
            &y + added.broadcast_mul(&factors)?.to_dtype(y.dtype())?
        }
    }
}

/// Some rows of a tensor, by its name without `.weight`.
pub(super) struct Rows<'a> {
    pub tensor: &'a str,
    pub range: Range<usize>,
}

/// Tensors of adapters, by the numbers of these and by their names.
pub(crate) type Unused = BTreeSet<(usize, String)>;

/// The adapters of a model while it is loaded.
pub(super) struct Attached<'a> {
    adapters: &'a [Adapter],
    lora: &'a Lora,
    /// Tensors that have found their matrices.
    seen: Mutex<BTreeSet<String>>,
}

/// A matrix of f32 as adapters have them.
fn narrow(values: &[f32], shape: (usize, usize), device: &Device, to: DType) -> Result<Weight> {
    Weight::new(&bytes_of(values), GgmlDType::F32, shape, device, to)
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

impl<'a> Attached<'a> {
    pub(super) fn new(adapters: &'a [Adapter], lora: &'a Lora) -> Self {
        Self {
            adapters,
            lora,
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
        self.of_rows(&self.lora.rows, rows, inputs, device, activations)
    }

    /// What belongs to the output matrix, which works on the rows that have logits.
    pub(super) fn of_output(
        &self,
        rows: &Rows,
        inputs: usize,
        device: &Device,
        activations: DType,
    ) -> Result<Option<Arc<MatrixAdapters>>> {
        let rows = std::slice::from_ref(rows);
        self.of_rows(&self.lora.outputs, rows, inputs, device, activations)
    }

    fn of_rows(
        &self,
        active: &Arc<Active>,
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
            Ok(Some(Narrow {
                down: narrow(&down, (rank, inputs), device, activations)?,
                up: narrow(&up, (outputs, rank), device, activations)?,
            }))
        });
        Ok(together(active, parts.collect::<Result<Vec<_>>>()?))
    }

    /// What belongs to the table of embeddings: a row of the rank for each token.
    pub(super) fn of_embedding(
        &self,
        device: &Device,
        activations: DType,
    ) -> Result<Option<Arc<MatrixAdapters>>> {
        let part = |adapter: &Adapter| {
            let Some(part) = adapter.parts.get(EMBEDDING) else {
                return Ok(None);
            };
            self.see(EMBEDDING);
            Ok(Some(Narrow {
                down: narrow(&part.a, (part.inputs, part.rank), device, activations)?,
                up: narrow(&part.b, (part.outputs, part.rank), device, activations)?,
            }))
        };
        let parts = self.adapters.iter().map(part);
        Ok(together(
            &self.lora.rows,
            parts.collect::<Result<Vec<_>>>()?,
        ))
    }

    fn see(&self, tensor: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(tensor.to_string());
    }

    /// The tensors that belong to no matrix of what was loaded, by the numbers of their adapters.
    pub(super) fn unused(&self) -> Unused {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.adapters.iter().enumerate();
        let names = all.flat_map(|(number, adapter)| {
            let names = adapter.parts.keys();
            names.map(move |name| (number, name.clone()))
        });
        names.filter(|(_, name)| !seen.contains(name)).collect()
    }
}

fn together(active: &Arc<Active>, parts: Vec<Option<Narrow>>) -> Option<Arc<MatrixAdapters>> {
    parts.iter().any(Option::is_some).then(|| {
        Arc::new(MatrixAdapters {
            active: active.clone(),
            parts,
        })
    })
}
