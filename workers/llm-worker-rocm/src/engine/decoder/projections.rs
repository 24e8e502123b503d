//! Queries, keys and values.

use super::input::Input;
use super::linear::{all_take_float8, Linear};
use super::norm::Norm;
use candle_core::{bail, Result, Tensor};

/// What makes queries, keys and values of one input.
pub(super) enum Projections {
    /// A matrix with the rows of all three behind each other: one product. All heads are of one size.
    Together(Linear),
    Apart {
        query: Linear,
        key: Linear,
        value: Linear,
    },
    /// Values are what keys are made of.
    Tied { query: Linear, key: Linear },
    /// Keys and values are those of another block.
    Query(Linear),
}

/// Sizes of attention's heads.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub count: usize,
    pub kv_count: usize,
    /// Elements of a query or key.
    pub size: usize,
    /// Elements of a value.
    pub v_size: usize,
}

impl Projections {
    /// Whether it multiplies 8-bit activations on a GPU.
    pub(super) fn takes_quantized(&self) -> bool {
        match self {
            Self::Together(all) => all.takes_quantized(),
            Self::Apart { query, key, value } => {
                [query, key, value].iter().all(|l| l.takes_quantized())
            }
            Self::Tied { query, key } => query.takes_quantized() && key.takes_quantized(),
            Self::Query(query) => query.takes_quantized(),
        }
    }

    /// Whether it multiplies so many rows of activations as 8-bit floats, as norms give them, on a GPU.
    pub(super) fn takes_float8(&self, rows: usize) -> Result<bool> {
        let all = match self {
            Self::Together(all) => vec![all],
            Self::Apart { query, key, value } => vec![query, key, value],
            Self::Tied { query, key } => vec![query, key],
            Self::Query(query) => vec![query],
        };
        all_take_float8(&all, rows)
    }

    /// `(tokens, width)` to three tensors of `(tokens, heads, size)`, whose tokens may lie apart.
    pub(super) fn forward(&self, x: &Input, heads: Heads) -> Result<[Tensor; 3]> {
        let tokens = x.floats.dim(0)?;
        let counts = [heads.count, heads.kv_count, heads.kv_count];
        match self {
            Self::Together(all) => {
                let total: usize = counts.iter().sum();
                let all = all.forward(x)?.reshape((tokens, total, heads.size))?;
                let [q, k, v] = counts;
                Ok([
                    all.narrow(1, 0, q)?,
                    all.narrow(1, q, k)?,
                    all.narrow(1, q + k, v)?,
                ])
            }
            Self::Apart { query, key, value } => {
                let [q, k, v] = Linear::forward_each([query, key, value], x)?;
                let [q_count, k_count, v_count] = counts;
                Ok([
                    q.reshape((tokens, q_count, heads.size))?,
                    k.reshape((tokens, k_count, heads.size))?,
                    v.reshape((tokens, v_count, heads.v_size))?,
                ])
            }
            Self::Tied { query, key } => {
                let [q, k] = Linear::forward_each([query, key], x)?;
                let k = k.reshape((tokens, heads.kv_count, heads.size))?;
                Ok([q.reshape((tokens, heads.count, heads.size))?, k.clone(), k])
            }
            Self::Query(_) => bail!("a block that shares keys and values makes none"),
        }
    }

    /// `(tokens, width)` to queries, `(tokens, heads, size)`, where keys and values are those of another block.
    pub(super) fn query(&self, x: &Input, heads: Heads) -> Result<Tensor> {
        match self {
            Self::Query(query) => {
                let queries = query.forward(x)?;
                queries.reshape((x.floats.dim(0)?, heads.count, heads.size))
            }
            _ => bail!("a block with keys and values of its own makes them with its queries"),
        }
    }
}

/// `(tokens, heads, size)` behind a norm of each head or of all together.
pub(super) fn normed(x: Tensor, norm: &Option<Norm>) -> Result<Tensor> {
    let Some(norm) = norm else { return Ok(x) };
    let x = x.contiguous()?;
    let (tokens, heads, size) = x.dims3()?;
    if heads > 1 && norm.weight.dims() == [heads * size] {
        let rows = x.reshape((tokens, heads * size))?;
        return norm.forward(&rows)?.reshape((tokens, heads, size));
    }
    norm.forward(&x)
}
