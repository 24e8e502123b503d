//! Words to the device and back around a piece of work, through host memory that both sides reach.
//!
//! A copy of a few bytes keeps an engine and a signal busy that cost more than the bytes. Here a kernel reads what the
//! host has written, and another leaves what the host waits for, with the device's error word: around a graph that is
//! one launch before, none behind, and one event. The kernel also orders: launches behind it read what it wrote.

use super::copy;
use crate::error_word::{self, told};
use crate::pinned::Pinned;
use crate::sync::lock;
use crate::{Buffer, Device, Error, Event, Result};
use candle_rocm_kernels::shared::index_error::IndexError;
use std::ptr;
use std::sync::Mutex;

const OP: &str = "exchange";
const WORD: usize = size_of::<u32>();

/// Host memory for words to a device and for its answers.
#[derive(Debug)]
pub struct Exchange {
    device: Device,
    /// The error word, answers, words.
    memory: Pinned,
    words: usize,
    answers: usize,
    state: Mutex<State>,
}

// SAFETY: the host reads and writes the memory under the lock of the state only, when the device is done with it.
unsafe impl Sync for Exchange {}

#[derive(Debug)]
struct State {
    /// Behind what the device does with the memory.
    done: Event,
    /// Whether the device may still read or write the memory.
    busy: bool,
    /// Whether `done` was recorded behind what was enqueued last.
    marked: bool,
}

impl Exchange {
    /// Memory for at most so many words to the device, and so many back.
    ///
    /// # Errors
    /// HIP's.
    pub fn new(device: &Device, words: usize, answers: usize) -> Result<Self> {
        device.enter()?;
        let gpu = device.gpu();
        let bytes = error_word::BYTES + (words + answers) * WORD;
        Ok(Exchange {
            memory: Pinned::new(gpu, bytes)?,
            device: device.clone(),
            words,
            answers,
            state: Mutex::new(State {
                done: Event::untimed(gpu)?,
                busy: false,
                marked: false,
            }),
        })
    }

    /// Enqueues that words are written to `to`, from a byte that is a multiple of 4 on. Waits for the device if it may
    /// still read those of before.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more words than there is room for, a crooked offset, and during a capture, whose
    /// graph would send the words of then; [`Error::OutOfBounds`], [`Error::DeviceMismatch`]; HIP's.
    pub fn send(&self, words: &[u32], to: &Buffer, byte_offset: usize) -> Result<()> {
        to.check_range(OP, byte_offset, size_of_val(words))?;
        if words.len() > self.words || !byte_offset.is_multiple_of(WORD) {
            return Err(self.refused(format!(
                "{} words to byte {byte_offset}, where {} have room, from a multiple of 4",
                words.len(),
                self.words
            )));
        }
        (self.device).check_not_capturing(OP, "its graph would repeat these words; send before")?;
        let mut state = lock(&self.state);
        if state.busy {
            self.wait(&mut state)?;
        }
        let offset = error_word::BYTES + self.answers * WORD;
        let host = self.memory.as_ptr().wrapping_add(offset).cast::<u32>();
        // SAFETY: there is room for the words, and the device does not read them now. `to` was checked.
        unsafe {
            ptr::copy_nonoverlapping(words.as_ptr(), host, words.len());
            copy::read_words(
                &self.device,
                (&self.memory, offset),
                (to, byte_offset),
                words.len() as u32,
            )?;
        }
        (state.busy, state.marked) = (true, false);
        Ok(())
    }

    /// Enqueues that the first `count` words of `from` come back, with what the kernels before had to say of bad
    /// indices. May be recorded into a graph.
    ///
    /// # Safety
    /// The exchange lives as long as such a graph is launched.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more words than there is room for, [`Error::OutOfBounds`],
    /// [`Error::DeviceMismatch`]; HIP's.
    pub unsafe fn answer(&self, from: &Buffer, count: usize) -> Result<()> {
        from.check_range(OP, 0, count.saturating_mul(WORD))?;
        if count > self.answers {
            let room = self.answers;
            return Err(self.refused(format!("{count} answers, where {room} have room")));
        }
        let mut state = lock(&self.state);
        // SAFETY: both sides have room; the memory lives as the caller promises.
        unsafe { copy::write_answer(&self.device, from, &self.memory, count as u32)? };
        (state.busy, state.marked) = (true, false);
        Ok(())
    }

    /// Marks that what was enqueued so far is what [`Exchange::receive`] waits for.
    ///
    /// # Errors
    /// HIP's.
    pub fn mark(&self) -> Result<()> {
        self.record(&mut lock(&self.state))
    }

    /// Waits for the mark, or if there is none behind what was sent last, for all that is enqueued. Gives the first
    /// `count` words of the answer.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] if an indexing kernel before the answer met a bad index, [`Error::InvalidArgument`]
    /// for more words than there is room for, and HIP's, including those of earlier asynchronous work.
    pub fn receive(&self, count: usize) -> Result<Vec<u32>> {
        if count > self.answers {
            let room = self.answers;
            return Err(self.refused(format!("{count} answers, where {room} have room")));
        }
        let mut state = lock(&self.state);
        self.wait(&mut state)?;
        // SAFETY: the memory begins with an error word, has the words behind it, and the device is done with it.
        let (word, answers) = unsafe {
            let word = self.memory.as_ptr().cast::<IndexError>().read_volatile();
            let host = self.memory.as_ptr().wrapping_add(error_word::BYTES);
            let host = host.cast::<u32>();
            let read = |i| host.wrapping_add(i).read_volatile();
            (word, (0..count).map(read).collect())
        };
        told(&word)?;
        Ok(answers)
    }

    /// Waits for the device and overwrites all answers, so that nothing passes for one that is none.
    ///
    /// # Errors
    /// HIP's.
    pub fn forget(&self) -> Result<()> {
        const NO_ANSWER: u32 = 0xdead_beef;
        let mut state = lock(&self.state);
        self.wait(&mut state)?;
        let host = self.memory.as_ptr().wrapping_add(error_word::BYTES);
        let host = host.cast::<u32>();
        for i in 0..self.answers {
            // SAFETY: there are so many words, and the device is done with them.
            unsafe { host.wrapping_add(i).write_volatile(NO_ANSWER) };
        }
        Ok(())
    }

    fn record(&self, state: &mut State) -> Result<()> {
        self.device.enter()?;
        state.done.record(self.device.stream())?;
        state.marked = true;
        Ok(())
    }

    fn wait(&self, state: &mut State) -> Result<()> {
        if !state.marked {
            self.record(state)?;
        }
        state.done.synchronize()?;
        state.busy = false;
        Ok(())
    }

    fn refused(&self, reason: String) -> Error {
        Error::InvalidArgument { op: OP, reason }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if lock(&self.state).busy {
            self.device.gpu().defer(self.device.stream().wait_idle());
        }
    }
}
