//! Changes of low rank: added to a matrix, or applied beside one that stays as it is.

use candle_core::{DType, Device, Module, Result, Tensor};

/// A matrix of few columns times one of few rows, with a core between them for convolutions; all in f32.
#[derive(Debug, Clone)]
pub struct LowRank {
    /// `(outputs, rank)`, times the strength.
    pub up: Tensor,
    /// `(rank, inputs)`.
    pub down: Tensor,
    /// `(up's rank, down's rank, height, width)`.
    pub core: Option<Tensor>,
}

impl LowRank {
    /// `count` shares of `shares` of the outputs, from share `first` on.
    ///
    /// # Errors
    /// If the outputs have no such parts.
    pub fn share(&self, first: usize, count: usize, shares: usize) -> Result<Self> {
        let outputs = self.up.dim(0)?;
        if !outputs.is_multiple_of(shares) {
            candle_core::bail!("{outputs} outputs have no {shares} equal parts")
        }
        let rows = outputs / shares;
        Ok(Self {
            up: self.up.narrow(0, first * rows, count * rows)?,
            ..self.clone()
        })
    }

    /// Rows and columns of the product; the core's height and width belong to the columns.
    ///
    /// # Errors
    /// If the matrices are none, or the core does not fit between them.
    pub fn size(&self) -> Result<(usize, usize)> {
        let ((outputs, rank), (own, inputs)) = (self.up.dims2()?, self.down.dims2()?);
        let (p, q, more) = match &self.core {
            None => (rank, rank, 1),
            Some(core) => {
                let (p, q, h, w) = core.dims4()?;
                (p, q, h * w)
            }
        };
        if (p, q) != (rank, own) {
            candle_core::bail!(
                "{:?} times {:?} with {:?} between",
                self.up.dims(),
                self.down.dims(),
                self.core.as_ref().map(Tensor::dims)
            )
        }
        match inputs.checked_mul(more) {
            Some(columns) => Ok((outputs, columns)),
            None => candle_core::bail!("a product of too many columns"),
        }
    }

    /// The product, with as many elements as the tensor to which it is added.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn product(&self) -> Result<Tensor> {
        let Some(core) = &self.core else {
            return self.up.matmul(&self.down);
        };
        // up (o, p), core (p, q, h, w), down (q, i): to (o, i, h, w).
        let (p, q, h, w) = core.dims4()?;
        let inputs = self.down.dim(1)?;
        let core = core.permute((0, 2, 3, 1))?.reshape((p * h * w, q))?;
        let core = core.matmul(&self.down)?.reshape((p, h * w, inputs))?;
        let core = core.transpose(1, 2)?.reshape((p, inputs * h * w))?;
        self.up.matmul(&core)
    }
}

/// What is added to a matrix that stays as it is: a product of two of low rank, applied beside it.
#[derive(Debug, Clone)]
pub struct Adapter {
    down: candle_nn::Linear,
    up: candle_nn::Linear,
}

impl Adapter {
    /// The sum of `changes`, which is one of the sum of their ranks, in the arithmetic and on the device of a network.
    ///
    /// # Errors
    /// If they are of different sizes, or the device has no room.
    pub fn new(changes: &[LowRank], dtype: DType, device: &Device) -> Result<Self> {
        let joined = |of: fn(&LowRank) -> &Tensor, dim| {
            let parts: Vec<&Tensor> = changes.iter().map(of).collect();
            let joined = Tensor::cat(&parts, dim)?.to_device(device)?;
            Result::Ok(candle_nn::Linear::new(joined.to_dtype(dtype)?, None))
        };
        Ok(Self {
            down: joined(|change| &change.down, 0)?,
            up: joined(|change| &change.up, 1)?,
        })
    }
}

impl Module for Adapter {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.up.forward(&self.down.forward(x)?)
    }
}
