//! What adaptations do to a weight: products of low rank and all that is made of the weight itself.
//!
//! The kinds are those of LyCORIS and PEFT, whose files name them; see [`crate::lora`]. A weight of any rank is looked at
//! as a matrix, `(outputs, everything else)`.

use super::low_rank::LowRank;
use super::rotation::{butterfly, inputs_turned, rescaled, rows, turned};
use candle_core::{Result, Tensor, D};

/// A change of one tensor, all in f32.
#[derive(Debug, Clone)]
pub enum Change {
    /// A product of low rank, times the strength: the one kind that can stay beside a matrix.
    LowRank(LowRank),
    /// Another kind.
    Other {
        /// What it is.
        kind: Kind,
        /// How much of it is taken; 1 is as trained.
        strength: f64,
    },
}

/// Changes that are not one product of low rank.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A difference.
    Full(Tensor),
    /// Another weight in the place of this one.
    Set(Tensor),
    /// LoHa: the product, element by element, of two products of low rank, times `scale`.
    Hadamard {
        /// The two.
        factors: [LowRank; 2],
        /// By which all is multiplied.
        scale: f64,
    },
    /// LoKr: the Kronecker product of two matrices, times `scale`.
    Kronecker {
        /// The two, the small one first.
        factors: [Factor; 2],
        /// By which all is multiplied.
        scale: f64,
    },
    /// DoRA: the weight with `change` on it, its rows or columns brought to learnt lengths.
    Decomposed {
        /// What is added before.
        change: Box<Change>,
        /// `(outputs)` or `(inputs)`.
        lengths: Tensor,
        /// Which of the two.
        axis: Axis,
        /// Whether the strength acts on `change`, as in PEFT, or on the whole difference, as in web UIs.
        within: bool,
    },
    /// OFT: blocks of outputs turned by `(blocks, size, size)`, then each multiplied by `(outputs)`.
    Rotation {
        /// The rotations.
        blocks: Tensor,
        /// Factors of the outputs.
        rescale: Option<Tensor>,
    },
    /// BOFT: several such rotations, `(times, blocks, size, size)`, each of outputs that lie twice as far apart.
    Butterfly {
        /// The rotations.
        blocks: Tensor,
        /// Factors of the outputs.
        rescale: Option<Tensor>,
    },
    /// OFT and BOFT of PEFT: blocks of inputs turned, `(stages, blocks, size, size)`, each stage of inputs that lie twice
    /// as far apart; one block is that of all. Then outputs multiplied by `(outputs)`.
    OfInputs {
        /// The rotations.
        stages: Tensor,
        /// Factors of the outputs.
        rescale: Option<Tensor>,
    },
    /// (IA)3: the weight times a vector, added to it.
    Scaled {
        /// `(outputs)` or `(inputs)`.
        vector: Tensor,
        /// Which of the two.
        axis: Axis,
    },
    /// GLoRA: a product of low rank, and the weight times another.
    General {
        /// Added.
        own: LowRank,
        /// `(inputs, rank)` and `(rank, inputs)`, by which the weight is multiplied.
        of_weight: LowRank,
        /// By which all is multiplied.
        scale: f64,
    },
}

/// A side of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Its rows.
    Outputs,
    /// Its columns; of a convolution all that belongs to an input channel.
    Inputs,
}

/// A matrix, or what it is a product of.
#[derive(Debug, Clone)]
pub enum Factor {
    /// As it is.
    Matrix(Tensor),
    /// A product.
    Product(LowRank),
}

impl Factor {
    fn size(&self) -> Result<(usize, usize)> {
        match self {
            Self::Matrix(matrix) => matrix.dims2(),
            Self::Product(product) => product.size(),
        }
    }

    fn matrix(&self) -> Result<Tensor> {
        match self {
            Self::Matrix(matrix) => Ok(matrix.clone()),
            Self::Product(product) => product.product(),
        }
    }
}

impl Change {
    /// `count` shares of `shares` of the outputs, from share `first` on.
    ///
    /// # Errors
    /// If the outputs have no such parts, or the kind goes across all of them.
    pub fn share(&self, first: usize, count: usize, shares: usize) -> Result<Self> {
        if shares == count {
            return Ok(self.clone());
        }
        match self {
            Self::LowRank(change) => change.share(first, count, shares).map(Self::LowRank),
            Self::Other { kind, strength } => Ok(Self::Other {
                kind: kind.share(first, count, shares)?,
                strength: *strength,
            }),
        }
    }

    /// Whether the weight itself is needed to know the change, not its shape alone.
    pub fn is_of_weight(&self) -> bool {
        match self {
            Self::LowRank(_) => false,
            Self::Other { kind, .. } => !matches!(
                kind,
                Kind::Full(_) | Kind::Hadamard { .. } | Kind::Kronecker { .. }
            ),
        }
    }

    /// What is added to `weight`, f32; of the weight's shape.
    ///
    /// # Errors
    /// If sizes do not fit the weight, or the device fails.
    pub fn delta(&self, weight: &Tensor) -> Result<Tensor> {
        let delta = match self {
            Self::LowRank(change) => {
                fits(change.size()?, weight)?;
                change.product()?.to_device(weight.device())?
            }
            Self::Other { kind, strength } => kind.delta(weight, *strength)?,
        };
        if delta.elem_count() != weight.elem_count() {
            candle_core::bail!(
                "the change has shape {:?}, the weight {:?}",
                delta.dims(),
                weight.dims()
            )
        }
        delta.reshape(weight.shape())
    }
}

/// Refuses products that are of other sizes than the weight before memory is taken for them.
fn fits((rows, columns): (usize, usize), weight: &Tensor) -> Result<()> {
    match rows.checked_mul(columns) == Some(weight.elem_count()) {
        true => Ok(()),
        false => candle_core::bail!(
            "the change has {rows} x {columns} elements, the weight has shape {:?}",
            weight.dims()
        ),
    }
}

/// `count` of `shares` equal parts of the first dimension.
fn part(x: &Tensor, first: usize, count: usize, shares: usize) -> Result<Tensor> {
    let rows = x.dim(0)?;
    if !rows.is_multiple_of(shares) {
        candle_core::bail!("{rows} outputs have no {shares} equal parts")
    }
    let rows = rows / shares;
    x.narrow(0, first * rows, count * rows)?.contiguous()
}

impl Kind {
    fn share(&self, first: usize, count: usize, shares: usize) -> Result<Self> {
        let part = |x: &Tensor| part(x, first, count, shares);
        let across = |what: &str| candle_core::bail!("{what} across matrices that are stacked");
        Ok(match self {
            Self::Full(x) => Self::Full(part(x)?),
            Self::Set(x) => Self::Set(part(x)?),
            Self::Hadamard { factors, scale } => {
                let share = |f: &LowRank| f.share(first, count, shares);
                Self::Hadamard {
                    factors: [share(&factors[0])?, share(&factors[1])?],
                    scale: *scale,
                }
            }
            Self::Kronecker { factors, scale } => {
                let [a, b] = factors;
                let ((rows, columns), (more_rows, more_columns)) = (a.size()?, b.size()?);
                let elements = [rows, columns, more_rows, more_columns]
                    .iter()
                    .try_fold(1usize, |all, n| all.checked_mul(*n));
                // Larger than any matrix that networks have.
                if elements.is_none_or(|elements| elements > 1 << 30) {
                    candle_core::bail!("a Kronecker product of too many elements")
                }
                let all = kronecker(&a.matrix()?, &b.matrix()?)?;
                Self::Full((part(&all)? * *scale)?)
            }
            Self::Decomposed {
                change,
                lengths,
                axis: Axis::Outputs,
                within,
            } => Self::Decomposed {
                change: Box::new(change.share(first, count, shares)?),
                lengths: part(lengths)?,
                axis: Axis::Outputs,
                within: *within,
            },
            Self::Decomposed { .. } => return across("DoRA by inputs"),
            Self::Rotation { blocks, rescale } => Self::Rotation {
                blocks: part(blocks)?,
                rescale: rescale.as_ref().map(part).transpose()?,
            },
            Self::Butterfly { .. } => return across("BOFT"),
            Self::OfInputs { stages, rescale } => Self::OfInputs {
                stages: stages.clone(),
                rescale: rescale.as_ref().map(part).transpose()?,
            },
            Self::Scaled { vector, axis } => Self::Scaled {
                vector: match axis {
                    Axis::Outputs => part(vector)?,
                    Axis::Inputs => vector.clone(),
                },
                axis: *axis,
            },
            Self::General {
                own,
                of_weight,
                scale,
            } => Self::General {
                own: own.share(first, count, shares)?,
                of_weight: of_weight.clone(),
                scale: *scale,
            },
        })
    }

    fn delta(&self, weight: &Tensor, strength: f64) -> Result<Tensor> {
        let device = weight.device();
        let here = |x: &Tensor| x.to_device(device);
        match self {
            Self::Full(difference) => here(difference)? * strength,
            Self::Set(other) => {
                fits((1, other.elem_count()), weight)?;
                (here(other)?.reshape(weight.shape())? - weight)? * strength
            }
            Self::Hadamard { factors, scale } => {
                for factor in factors {
                    fits(factor.size()?, weight)?;
                }
                let [a, b] = factors;
                let product = (a.product()? * b.product()?)?;
                here(&product)? * (strength * scale)
            }
            Self::Kronecker { factors, scale } => {
                let [a, b] = factors;
                let ((rows, columns), (more_rows, more_columns)) = (a.size()?, b.size()?);
                let size = (
                    rows.saturating_mul(more_rows),
                    columns.saturating_mul(more_columns),
                );
                fits(size, weight)?;
                here(&kronecker(&a.matrix()?, &b.matrix()?)?)? * (strength * scale)
            }
            Self::Decomposed {
                change,
                lengths,
                axis,
                within,
            } => {
                let inside = if *within { strength } else { 1.0 };
                let sum = (weight + (change.delta(weight)? * inside)?)?;
                let (norm, shape) = norms(&sum, *axis)?;
                if lengths.elem_count() != norm.elem_count() {
                    candle_core::bail!(
                        "DoRA has {} lengths for {}",
                        lengths.elem_count(),
                        norm.elem_count()
                    )
                }
                let lengths = here(lengths)?.reshape(norm.shape())?;
                let factor = (lengths / (norm + f64::from(f32::EPSILON))?)?.reshape(shape)?;
                let difference = (sum.broadcast_mul(&factor)? - weight)?;
                difference * if *within { 1.0 } else { strength }
            }
            Self::Rotation { blocks, rescale } => {
                let turned = turned(&here(blocks)?, weight)?;
                (rescaled(turned, rescale.as_ref())? - rows(weight)?)? * strength
            }
            Self::Butterfly { blocks, rescale } => {
                let turned = butterfly(&here(blocks)?, weight, strength)?;
                rescaled(turned, rescale.as_ref())? - rows(weight)?
            }
            Self::OfInputs { stages, rescale } => {
                let turned = inputs_turned(&here(stages)?, weight)?;
                (rescaled(turned, rescale.as_ref())? - rows(weight)?)? * strength
            }
            Self::Scaled { vector, axis } => {
                let shape = side(weight, *axis)?;
                let vector = here(vector)?.reshape(shape)?;
                weight.broadcast_mul(&vector)? * strength
            }
            Self::General {
                own,
                of_weight,
                scale,
            } => {
                fits(own.size()?, weight)?;
                let inputs = weight.dim(1)?;
                if of_weight.size()? != (inputs, inputs) {
                    candle_core::bail!(
                        "GLoRA multiplies {:?} with a weight of {inputs} inputs",
                        of_weight.size()?
                    )
                }
                // (o, i, …): the inputs are multiplied.
                let (outputs, rest) = (
                    weight.dim(0)?,
                    weight.elem_count() / weight.dim(0)? / inputs,
                );
                let flat = weight.reshape((outputs, inputs, rest))?.transpose(1, 2)?;
                let flat = flat.reshape((outputs * rest, inputs))?;
                let product = flat.matmul(&here(&of_weight.up)?)?;
                let product = product.matmul(&here(&of_weight.down)?)?;
                let product = product.reshape((outputs, rest, inputs))?.transpose(1, 2)?;
                let own = here(&own.product()?)?;
                (product.reshape(own.shape())? + own)? * (strength * scale)
            }
        }
    }
}

/// The shape of a vector along an axis of a weight, for broadcasting.
fn side(weight: &Tensor, axis: Axis) -> Result<Vec<usize>> {
    let mut shape = vec![1; weight.rank()];
    let at = match axis {
        Axis::Outputs => 0,
        Axis::Inputs => 1,
    };
    if weight.rank() <= at {
        candle_core::bail!("a weight of shape {:?} has no inputs", weight.dims())
    }
    shape[at] = weight.dims()[at];
    Ok(shape)
}

/// Lengths of a weight's rows or of all that belongs to an input, and their shape for broadcasting.
fn norms(weight: &Tensor, axis: Axis) -> Result<(Tensor, Vec<usize>)> {
    let shape = side(weight, axis)?;
    let flat = match axis {
        Axis::Outputs => rows(weight)?,
        Axis::Inputs => rows(&weight.transpose(0, 1)?.contiguous()?)?,
    };
    Ok((flat.sqr()?.sum(D::Minus1)?.sqrt()?, shape))
}

/// The Kronecker product of two matrices.
fn kronecker(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let ((rows, columns), (more_rows, more_columns)) = (a.dims2()?, b.dims2()?);
    let a = a.reshape((rows, 1, columns, 1))?;
    let b = b.reshape((1, more_rows, 1, more_columns))?;
    a.broadcast_mul(&b)?
        .reshape((rows * more_rows, columns * more_columns))
}
