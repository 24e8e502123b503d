//! What brings experts from the host's memory to a GPU: two places there that take turns, and a stream of its own.

use crate::engine::api::{ExpertsBy, WeightOptions};
use crate::engine::decoder::rocm::{self, Buffer};
use candle_core::rocm_backend::candle_rocm::{self, UploadStream};
use candle_core::{bail, Device, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Under which [`candle_rocm::Device::remember`] keeps measurements.
pub(crate) const KIND: &str = "experts";

/// What a mixture takes on the GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine::decoder) struct Needs {
    /// Of one expert's gate, what it multiplies, and what comes behind.
    pub bytes: [usize; 3],
    /// Experts of a token.
    pub used: usize,
    pub count: usize,
}

impl Needs {
    /// What suffices for both.
    fn and(self, other: Self) -> Self {
        Self {
            bytes: std::array::from_fn(|part| self.bytes[part].max(other.bytes[part])),
            used: self.used.max(other.used),
            count: self.count.max(other.count),
        }
    }

    /// Experts that a place of so many bytes has room for: all of a token's at least, and no more than there are.
    fn room(&self, place: usize) -> usize {
        let each = self.bytes.iter().sum::<usize>().max(1);
        (place / each).min(self.count).max(self.used).max(1)
    }
}

/// What all mixtures of a model share whose experts are in the host's memory.
pub(in crate::engine::decoder) struct Streamer {
    by: ExpertsBy,
    place_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    needs: Needs,
    uploads: Option<UploadStream>,
    /// The parts of each place.
    places: Vec<[Arc<Buffer>; 3]>,
    /// By experts' formats and shapes, the rows from which on copies pay.
    enough: HashMap<String, f64>,
}

impl Streamer {
    pub(in crate::engine::decoder) fn new(options: &WeightOptions) -> Self {
        Self {
            by: options.experts_by,
            place_bytes: options.place_bytes,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no mixture needs it.
    pub(in crate::engine::decoder) fn is_idle(&self) -> bool {
        self.state().needs == Needs::default()
    }

    /// Takes note of a mixture.
    pub(in crate::engine::decoder) fn add(&self, needs: Needs) {
        let mut state = self.state();
        state.needs = state.needs.and(needs);
    }

    /// Reserves the places for the mixtures that were added, so that they do not go to the cache.
    pub(in crate::engine::decoder) fn reserve(&self, device: &Device) -> Result<()> {
        match self.is_idle() || self.by == ExpertsBy::Host {
            true => Ok(()),
            false => self.turns(device).map(drop),
        }
    }

    /// The places and the stream, made where they are missing or too small.
    pub(super) fn turns(&self, device: &Device) -> Result<Turns<'_>> {
        let device = rocm::device(device)?;
        let mut state = self.state();
        let room = state.needs.room(self.place_bytes);
        let wanted = state.needs.bytes.map(|bytes| bytes * room);
        let fits = |place: &[Arc<Buffer>; 3]| {
            let parts = place.iter().zip(wanted);
            parts.clone().all(|(buffer, bytes)| buffer.len() >= bytes)
        };
        if state.places.len() != 2 || !state.places.iter().all(fits) {
            // What is under way has an end.
            state.uploads = None;
            state.places.clear();
            for _ in 0..2 {
                let part = |bytes: usize| Ok(Arc::new(device.alloc(bytes)?));
                let parts = wanted.map(part).into_iter();
                let parts = parts.collect::<candle_rocm::Result<Vec<_>>>()?;
                let Ok(parts) = parts.try_into() else {
                    bail!("a place has three parts")
                };
                state.places.push(parts);
            }
        }
        if state.uploads.is_none() {
            state.uploads = Some(UploadStream::new(device)?);
        }
        Ok(Turns { state, room })
    }

    /// The rows for each expert from which on the GPU is the faster, by experts of this name: as is forced, as was found
    /// before, or by measurement.
    pub(super) fn enough_rows(
        &self,
        name: &str,
        device: &Device,
        measure: impl FnOnce() -> Result<f64>,
    ) -> Result<f64> {
        match self.by {
            ExpertsBy::Host => return Ok(f64::INFINITY),
            ExpertsBy::Device => return Ok(0.0),
            ExpertsBy::Measured => {}
        }
        if let Some(enough) = self.state().enough.get(name) {
            return Ok(*enough);
        }
        let device = rocm::device(device)?;
        let mut known = device.recall(KIND);
        let found = known.iter().find(|(known, _)| known == name);
        let found = found.and_then(|(_, enough)| enough.parse().ok());
        let enough = match found {
            Some(enough) => enough,
            None => {
                let enough = measure()?;
                known.retain(|(known, _)| known != name);
                known.push((name.to_string(), enough.to_string()));
                if let Err(error) = device.remember(KIND, &known) {
                    tracing::warn!("what was measured of experts is not remembered: {error}");
                }
                enough
            }
        };
        self.state().enough.insert(name.to_string(), enough);
        Ok(enough)
    }
}

/// Both places, for one mixture at a time.
pub(super) struct Turns<'a> {
    state: MutexGuard<'a, State>,
    room: usize,
}

impl Turns<'_> {
    /// Experts of a place.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    fn uploads(&mut self) -> Result<&mut UploadStream> {
        match &mut self.state.uploads {
            Some(uploads) => Ok(uploads),
            None => bail!("there is no stream for uploads"),
        }
    }

    /// Has uploads wait until the places are no longer in use.
    pub(super) fn begin(&mut self) -> Result<()> {
        Ok(self.uploads()?.follow()?)
    }

    /// Enqueues that experts come into the place whose turn has this number, part by part behind each other. What the
    /// GPU has been given since the last [`Turns::take_over`] may go on meanwhile.
    pub(super) fn send(&mut self, number: usize, experts: &[Vec<&[u8]>; 3]) -> Result<()> {
        let place = self.stacks(number);
        for (buffer, matrices) in place.iter().zip(experts) {
            let mut offset = 0;
            for matrix in matrices {
                self.uploads()?.upload(matrix, buffer, offset)?;
                offset += matrix.len();
            }
        }
        Ok(())
    }

    /// Has the GPU wait for what was sent, and what is sent next for what the GPU was given before.
    pub(super) fn take_over(&mut self) -> Result<()> {
        let uploads = self.uploads()?;
        uploads.lead()?;
        Ok(uploads.follow()?)
    }

    /// Waits for what was sent.
    pub(super) fn wait(&mut self) -> Result<()> {
        Ok(self.uploads()?.synchronize()?)
    }

    /// The parts of the place whose turn has this number.
    pub(super) fn stacks(&self, number: usize) -> [Arc<Buffer>; 3] {
        self.state.places[number % 2].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_room_for_a_token_and_for_no_more_than_there_are() {
        let room = |bytes, used, count| {
            Needs {
                bytes: [bytes; 3],
                used,
                count,
            }
            .room(256 << 20)
        };
        assert_eq!(room(1 << 10, 2, 8), 8);
        assert_eq!(room((1 << 20) * 4 / 3, 8, 128), 64);
        assert_eq!(room(64 << 20, 8, 128), 8);
        assert_eq!(room(0, 0, 0), 1);
    }
}
