//! What was compared.

use crate::{nmse, to_f64};
use candle_core::{Result, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

/// One comparison of a result with what it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The operation.
    pub op: String,
    /// Its dtype, or the format of quantized tensors.
    pub dtype: String,
    /// Shapes, memory layouts and options.
    pub what: String,
    /// What is wrong; none if nothing is.
    pub failure: Option<String>,
}

type Observer<'a> = Box<dyn FnMut(&Comparison) + 'a>;

/// What was compared, and what failed.
#[derive(Default)]
pub struct Report<'a> {
    comparisons: Vec<Comparison>,
    observer: Option<Observer<'a>>,
}

impl<'a> Report<'a> {
    /// A report that hands each comparison to `observer` as soon as it is made.
    pub fn observed(observer: impl FnMut(&Comparison) + 'a) -> Self {
        Report {
            comparisons: Vec::new(),
            observer: Some(Box::new(observer)),
        }
    }

    /// Compares `got` with `want`; integers, and floats with a limit of 0, must be equal.
    pub fn compare(
        &mut self,
        op: &str,
        dtype: &str,
        what: &str,
        limit: f64,
        got: Result<Tensor>,
        want: Result<Tensor>,
    ) {
        let outcome = got
            .and_then(|got| Ok((got.shape().clone(), to_f64(&got)?)))
            .and_then(|got| {
                want.and_then(|want| Ok((got, (want.shape().clone(), to_f64(&want)?))))
            });
        let failure = match outcome {
            Err(error) => Some(error.to_string()),
            Ok(((got_shape, _), (want_shape, _))) if got_shape != want_shape => {
                Some(format!("shape {got_shape:?} instead of {want_shape:?}"))
            }
            Ok(((_, got), (_, want))) => match nmse(&got, &want) {
                Err(difference) => Some(difference),
                Ok(error) if error > limit => Some(format!("NMSE {error:e} exceeds {limit:e}")),
                Ok(_) => None,
            },
        };
        self.record(op, dtype, what, failure);
    }

    /// Adds a comparison that was made elsewhere.
    pub fn record(&mut self, op: &str, dtype: &str, what: &str, failure: Option<String>) {
        let comparison = Comparison {
            op: op.into(),
            dtype: dtype.into(),
            what: what.into(),
            failure,
        };
        if let Some(observer) = &mut self.observer {
            observer(&comparison);
        }
        self.comparisons.push(comparison);
    }

    /// Every comparison, in order.
    pub fn comparisons(&self) -> &[Comparison] {
        &self.comparisons
    }

    /// A text for each comparison that failed.
    pub fn failures(&self) -> impl Iterator<Item = String> + '_ {
        self.comparisons.iter().filter_map(|comparison| {
            let Comparison {
                op,
                dtype,
                what,
                failure,
            } = comparison;
            Some(format!("{op} {dtype} {what}: {}", failure.as_ref()?))
        })
    }

    /// Writes how often each operation passed in each dtype, for the support page.
    pub(crate) fn write_table(&self, path: &Path) -> std::io::Result<()> {
        let mut passed: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for comparison in &self.comparisons {
            if comparison.failure.is_none() {
                *passed
                    .entry((&comparison.op, &comparison.dtype))
                    .or_default() += 1;
            }
        }
        let mut lines = String::new();
        for ((op, dtype), count) in passed {
            lines.push_str(&format!("{op}\t{dtype}\t{count}\n"));
        }
        std::fs::write(path, lines)
    }
}
