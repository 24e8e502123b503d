//! Steps that take over what blocks added in an earlier one.

use candle_core::{Result, Tensor};
use std::cell::RefCell;

/// When what blocks add is taken over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Takes {
    /// While what the first block adds changes less than this share.
    FirstBlock(f64),
    /// While the sum of the changes of the first block's modulated input, through this polynomial (the highest power
    /// first), is below a threshold: TeaCache (Liu et al. 2024).
    Tea(f64, &'static [f64]),
}

/// The polynomial that the authors of TeaCache fitted for FLUX.1.
pub const TEA_FLUX: &[f64] = &[
    498.651651,
    -283.781631,
    55.8554382,
    -3.82021401,
    0.264230861,
];

/// What a network remembers of earlier steps of a run.
#[derive(Debug)]
pub struct BlockCache {
    takes: Takes,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What changes are measured by: what the first block added, or its modulated input.
    measured: Option<Tensor>,
    sum: f64,
    /// Where what is added begins.
    start: Option<Tensor>,
    /// What was added from there on.
    added: Option<Tensor>,
}

impl BlockCache {
    /// Nothing is remembered yet.
    pub fn new(takes: Takes) -> Self {
        Self {
            takes,
            state: RefCell::default(),
        }
    }

    /// The end of all blocks, if it need not be computed for what begins with `x`; `modulated` is the first block's
    /// modulated input. `ends` is the first or last step, which is always computed.
    ///
    /// # Errors
    /// candle's.
    pub fn instead_of_all(
        &self,
        x: &Tensor,
        modulated: &dyn Fn() -> Result<Tensor>,
        ends: bool,
    ) -> Result<Option<Tensor>> {
        let Takes::Tea(threshold, polynomial) = self.takes else {
            return Ok(None);
        };
        let mut state = self.state.borrow_mut();
        let modulated = modulated()?;
        if let (Some(before), false) = (&state.measured, ends) {
            let change = change(&modulated, before)?;
            let sum = polynomial.iter().fold(0.0, |sum, c| sum * change + c);
            state.sum += sum;
            if state.sum < threshold {
                state.measured = Some(modulated);
                return state.added.as_ref().map(|added| x + added).transpose();
            }
        }
        state.measured = Some(modulated);
        state.sum = 0.0;
        state.start = Some(x.clone());
        Ok(None)
    }

    /// The end of all blocks, if it need not be computed after the first led from `before` to `after`.
    ///
    /// # Errors
    /// candle's.
    pub fn instead_of_rest(&self, before: &Tensor, after: &Tensor) -> Result<Option<Tensor>> {
        let Takes::FirstBlock(threshold) = self.takes else {
            return Ok(None);
        };
        let mut state = self.state.borrow_mut();
        let first = (after - before)?;
        if let (Some(measured), Some(added)) = (&state.measured, &state.added) {
            if change(&first, measured)? <= threshold {
                return (after + added).map(Some);
            }
        }
        state.measured = Some(first);
        state.start = Some(after.clone());
        Ok(None)
    }

    /// Remembers where computed blocks ended.
    ///
    /// # Errors
    /// candle's.
    pub fn keep(&self, end: &Tensor) -> Result<()> {
        let mut state = self.state.borrow_mut();
        state.added = match state.start.take() {
            Some(start) => Some((end - start)?),
            None => None,
        };
        Ok(())
    }
}

/// By which share of its size something has changed.
fn change(now: &Tensor, before: &Tensor) -> Result<f64> {
    let mean = |x: &Tensor| {
        let x = x.to_dtype(candle_core::DType::F32)?;
        x.abs()?.mean_all()?.to_scalar::<f32>()
    };
    Ok(f64::from(mean(&(now - before)?)?) / f64::from(mean(before)?).max(1e-12))
}
