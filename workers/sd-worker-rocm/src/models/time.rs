//! The numbers that change from step to step, as networks are told them.
//!
//! An evaluation that is recorded is repeated with other numbers: whatever of them it reads has to be in device memory
//! that is filled before. [`Time`] is such a number, and [`Rows`] is where its embeddings are; without rows embeddings
//! are uploaded where they are asked for.

use super::layers::sinusoidal;
use crate::sampling::NoiseLevel;
use candle_core::{Device, Result, Tensor};
use std::cell::{Cell, RefCell};
use std::ops::Deref;

/// How a number follows from a noise level.
pub type Of = fn(&NoiseLevel) -> f64;

/// Where a number comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    Level { of: Of, factor: f64 },
    Constant(f64),
}

impl Source {
    fn at(self, level: &NoiseLevel) -> f64 {
        match self {
            Self::Level { of, factor } => of(level) * factor,
            Self::Constant(value) => value,
        }
    }
}

/// The noise level of an evaluation. Numbers that a network is told are taken by [`Level::time`]; what reads the level in
/// another way does not follow it when it is repeated, and is not recorded.
#[derive(Debug, Clone, Copy)]
pub struct Level<'a> {
    at: NoiseLevel,
    rows: Option<&'a Rows>,
}

impl<'a> Level<'a> {
    /// Of an evaluation that is not repeated.
    pub fn new(at: NoiseLevel) -> Self {
        Self { at, rows: None }
    }

    /// A number that follows from the level.
    pub fn time(&self, of: Of) -> Time<'a> {
        Time {
            value: of(&self.at),
            source: Source::Level { of, factor: 1.0 },
            rows: self.rows,
        }
    }
}

impl Deref for Level<'_> {
    type Target = NoiseLevel;

    fn deref(&self) -> &NoiseLevel {
        if let Some(rows) = self.rows {
            rows.fixed.set(true);
        }
        &self.at
    }
}

/// A number that a network is told.
#[derive(Debug, Clone, Copy)]
pub struct Time<'a> {
    value: f64,
    source: Source,
    rows: Option<&'a Rows>,
}

impl From<f64> for Time<'_> {
    fn from(value: f64) -> Self {
        Self {
            value,
            source: Source::Constant(value),
            rows: None,
        }
    }
}

impl Time<'_> {
    /// The number times a constant.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            source: match self.source {
                Source::Level { of, factor: before } => Source::Level {
                    of,
                    factor: before * factor,
                },
                Source::Constant(value) => Source::Constant(value * factor),
            },
            ..self
        }
    }

    /// A number that is the same in all steps, for the same evaluation.
    #[must_use]
    pub fn constant(self, value: f64) -> Self {
        Self {
            value,
            source: Source::Constant(value),
            ..self
        }
    }

    /// Its embedding, `(1, size)` in f32, as [`sinusoidal`] has it.
    ///
    /// # Errors
    /// If the device fails, or a repeated evaluation asks for something else than before.
    pub fn embedding(
        &self,
        size: usize,
        cosines_first: bool,
        shift: f64,
        device: &Device,
    ) -> Result<Tensor> {
        let form = Form {
            source: self.source,
            size,
            cosines_first,
            shift,
        };
        match self.rows {
            None => form.row(self.value, device),
            Some(rows) => rows.next(form, self.value, device),
        }
    }
}

/// How an embedding is computed.
#[derive(Debug, Clone, Copy)]
struct Form {
    source: Source,
    size: usize,
    cosines_first: bool,
    shift: f64,
}

impl Form {
    fn row(&self, value: f64, device: &Device) -> Result<Tensor> {
        sinusoidal(&[value], self.size, self.cosines_first, self.shift, device)
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.size, self.cosines_first, self.shift)
            == (other.size, other.cosines_first, other.shift)
    }
}

/// The embeddings that an evaluation asks for, in their order, in memory that stays where it is.
#[derive(Debug, Default)]
pub struct Rows {
    rows: RefCell<Vec<(Form, Tensor)>>,
    /// How many of them this evaluation has asked for.
    asked: Cell<usize>,
    /// Whether the evaluation is a repeated one, for which all rows are there.
    complete: Cell<bool>,
    /// Whether the noise level was read in a way that cannot be repeated.
    fixed: Cell<bool>,
}

impl Rows {
    /// The level of an evaluation that makes the rows, or finds them.
    pub fn level(&self, at: NoiseLevel) -> Level<'_> {
        self.asked.set(0);
        Level {
            at,
            rows: Some(self),
        }
    }

    /// After an evaluation: from now on it is repeated. Says why it cannot be, if so.
    ///
    /// # Errors
    /// The reason.
    pub fn complete(&self) -> std::result::Result<(), &'static str> {
        self.complete.set(true);
        let is_told = (self.rows.borrow().iter())
            .any(|(form, _)| matches!(form.source, Source::Level { .. }));
        match (self.fixed.get(), is_told) {
            (true, _) => Err("this model's network reads the noise level in its evaluation"),
            (false, false) => Err("this model's network is not told the time"),
            (false, true) => Ok(()),
        }
    }

    /// Whether an evaluation can be repeated with them.
    pub fn are_complete(&self) -> bool {
        self.complete.get()
    }

    /// Fills the rows for a level.
    ///
    /// # Errors
    /// The device's.
    pub fn fill(&self, level: &NoiseLevel) -> Result<()> {
        for (form, row) in self.rows.borrow().iter() {
            if let Source::Level { .. } = form.source {
                let new = form.row(form.source.at(level), row.device())?;
                row.slice_set(&new, 0, 0)?;
            }
        }
        Ok(())
    }

    fn next(&self, form: Form, value: f64, device: &Device) -> Result<Tensor> {
        let at = self.asked.get();
        self.asked.set(at + 1);
        let mut rows = self.rows.borrow_mut();
        match rows.get(at) {
            Some((known, row)) if known.is_like(&form) => Ok(row.clone()),
            None if !self.complete.get() => {
                let row = form.row(value, device)?;
                rows.push((form, row.clone()));
                Ok(row)
            }
            _ => candle_core::bail!("an evaluation asks for other numbers than the one before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: NoiseLevel = NoiseLevel {
        timestep: 601.0,
        alpha: 0.8,
        sigma: 0.6,
    };

    fn embedding(time: Time) -> Vec<f32> {
        let row = time.embedding(8, true, 0.0, &Device::Cpu).unwrap();
        row.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn a_repeated_evaluation_reads_the_numbers_of_its_level() {
        let other = NoiseLevel {
            timestep: 20.0,
            sigma: 0.1,
            ..AT
        };
        let asked = |level: Level| {
            let time = level.time(|level| 1000.0 * level.sigma);
            [time, time.times(0.5), time.constant(3.0)].map(embedding)
        };
        let rows = Rows::default();
        assert_eq!(asked(rows.level(AT)), asked(Level::new(AT)));
        rows.complete().unwrap();
        rows.fill(&other).unwrap();
        // The rows are what counts, not the level that is given.
        assert_eq!(asked(rows.level(AT)), asked(Level::new(other)));
        assert_ne!(asked(Level::new(AT)), asked(Level::new(other)));
        assert_eq!(
            embedding(600.0.into()),
            embedding(Level::new(AT).time(|level| 1000.0 * level.sigma))
        );
        // One more is not foreseen.
        let time = rows.level(AT).time(|level| level.timestep);
        let size = |size| time.embedding(size, true, 0.0, &Device::Cpu);
        assert!(size(4).is_err());
        assert!(size(8).is_ok() && size(8).is_ok());
        assert!(size(8).is_err());
    }

    #[test]
    fn what_does_not_follow_the_level_is_not_repeated() {
        let rows = Rows::default();
        let level = rows.level(AT);
        embedding(level.time(|level| level.timestep).constant(1.0));
        assert!(rows.complete().unwrap_err().contains("not told"));
        let rows = Rows::default();
        let level = rows.level(AT);
        embedding(level.time(|level| level.timestep));
        assert_eq!(level.sigma, 0.6);
        assert!(rows.complete().unwrap_err().contains("reads the noise"));
    }
}
