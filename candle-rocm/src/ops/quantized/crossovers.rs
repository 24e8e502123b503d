//! What was measured of a GPU: from how many vectors on rocBLAS is faster than tiles of integers, or products of 8-bit
//! floats are faster than both.

use super::Format;
use crate::gpu::Gpu;
use crate::slots::Kept;
use crate::sync::lock;
use crate::{remembered, Device, Result};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

/// What is known of a GPU.
#[derive(Debug, Default)]
pub(super) struct Crossovers {
    known: OnceLock<Mutex<Known>>,
    float8: OnceLock<Mutex<Known>>,
}

type Known = HashMap<Format, Option<usize>>;

impl Crossovers {
    fn known(&self, gpu: &Gpu) -> &Mutex<Known> {
        self.known
            .get_or_init(|| Mutex::new(parse(&remembered::read(gpu, KIND, None))))
    }

    fn known_float8(&self, gpu: &Gpu) -> &Mutex<Known> {
        self.float8
            .get_or_init(|| Mutex::new(parse(&remembered::read(gpu, FLOAT8, None))))
    }

    /// From how many vectors on 8-bit floats are the faster for a format, if they were found to be for any number.
    pub(super) fn float8(&self, gpu: &Gpu, format: Format) -> Option<usize> {
        lock(self.known_float8(gpu)).get(&format).copied().flatten()
    }

    /// Remembers from how many vectors on 8-bit floats are the faster; none if they never are. Otherwise as
    /// [`Self::insert`].
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if it cannot be written.
    pub(super) fn insert_float8(
        &self,
        gpu: &Gpu,
        format: Format,
        from: Option<usize>,
    ) -> Result<()> {
        let mut known = lock(self.known_float8(gpu));
        known.insert(format, from);
        remembered::write(gpu, FLOAT8, None, &results(&known))
    }

    /// What is known of the device's GPU.
    pub(super) fn of(device: &Device) -> &'static Self {
        device.shared().slot()
    }

    /// The crossover of a format, if it was measured.
    pub(super) fn get(&self, gpu: &Gpu, format: Format) -> Option<Option<usize>> {
        lock(self.known(gpu)).get(&format).copied()
    }

    /// Remembers a crossover, for this process at once and for later ones if there is a cache on disk.
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if it cannot be written.
    pub(super) fn insert(&self, gpu: &Gpu, format: Format, above: Option<usize>) -> Result<()> {
        let mut known = lock(self.known(gpu));
        known.insert(format, above);
        remembered::write(gpu, KIND, None, &results(&known))
    }

    /// Forgets all, on disk as well.
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if the file cannot be removed.
    pub(super) fn clear(&self, gpu: &Gpu) -> Result<()> {
        lock(self.known(gpu)).clear();
        lock(self.known_float8(gpu)).clear();
        remembered::remove(gpu, KIND)?;
        remembered::remove(gpu, FLOAT8)
    }
}

impl Kept for Crossovers {}

/// Of [`remembered`].
const KIND: &str = "products";
/// The same, of products of 8-bit floats.
const FLOAT8: &str = "float8";
/// In place of a number for a format that nothing else ever is the faster for.
const NEVER: &str = "never";

fn parse(results: &[(String, String)]) -> Known {
    let known = results.iter().filter_map(|(name, above)| {
        let format = Format::ALL.iter().find(|format| format.word() == name)?;
        let above = match above.as_str() {
            NEVER => None,
            number => Some(number.parse().ok()?),
        };
        Some((*format, above))
    });
    known.collect()
}

fn results(known: &Known) -> Vec<(String, String)> {
    let known = Format::ALL.iter().filter_map(|format| {
        let above = known.get(format)?;
        let above = above.map_or(NEVER.to_string(), |n| n.to_string());
        Some((format.word().to_string(), above))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let known = HashMap::from([(Format::Q4K, Some(64)), (Format::Q6K, None)]);
        assert_eq!(parse(&results(&known)), known);
        let damaged = [("q4k", "many"), ("nothing", "3"), ("q8_0", "32")];
        let damaged = damaged.map(|(name, above)| (name.to_string(), above.to_string()));
        assert_eq!(parse(&damaged), HashMap::from([(Format::Q8_0, Some(32))]));
    }
}
