//! Device memory: whether it keeps what is written to it.
//!
//! All of it that is asked for is filled by one kernel and looked at by another, pattern after pattern, so that a word
//! is read only after everything else was written.

use super::{host_memory, size, GIB, MIB};
use crate::pattern::{Pattern, Patterns};
use crate::report::Measurement;
use crate::{Check, Failure, Options, Section};
use candle_rocm::{Buffer, Device, Error};
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct Memory;

/// What is taken at once. Small enough that a machine with scattered memory has it.
const CHUNK: usize = 256 * MIB;
/// Bits of a word, and so steps until a walking bit has been everywhere.
const BITS: u32 = 32;

impl Section for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn about(&self) -> &'static str {
        "patterns in device memory: addresses, walking bits, random words"
    }

    fn limit(&self, options: &Options) -> Duration {
        options.pick(
            Duration::from_secs(1800),
            Duration::from_secs(300),
            Duration::from_secs(300),
        )
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        let options = check.options();
        let device = check.device()?;
        check.progress("making the kernels that check");
        let patterns = Patterns::new(&device)?;
        let (free, total) = device.memory_info()?;
        let wanted = free / 100 * options.memory_percent as usize;
        // What an integrated GPU takes, the host lacks.
        let wanted = match device.properties().integrated {
            true => wanted.min(host_memory()),
            false => wanted,
        };
        let wanted = wanted.min(options.pick(usize::MAX, 32 * GIB, 8 * MIB));
        let chunks = take(check, &device, wanted, options.pick(CHUNK, CHUNK, MIB))?;
        let bytes: usize = chunks.iter().map(Buffer::len).sum();
        let steps = options.pick(BITS, 4, 2);
        check.note(format!("{} of {} are tested", size(bytes), size(total)));
        let start = Instant::now();
        let plan = [
            (Pattern::Address, 0),
            (Pattern::AddressInverted, 0),
            (Pattern::Random, 1),
            (Pattern::Random, 2),
        ];
        let walking = (0..steps).flat_map(|step| {
            let seed = step * (BITS / steps);
            [(Pattern::WalkingOne, seed), (Pattern::WalkingZero, seed)]
        });
        let mut passes = 0;
        let mut faults = Faults::default();
        for (pattern, seed) in plan.into_iter().chain(walking) {
            check.progress(format!("{pattern:?} {seed}, {}", size(bytes)));
            let mut first = 0;
            for chunk in &chunks {
                patterns.fill(chunk, pattern, seed, first)?;
                first += (chunk.len() / crate::pattern::WORD) as u64;
            }
            let mut first = 0;
            for chunk in &chunks {
                if let Some(found) = patterns.check(chunk, chunk.len(), pattern, seed, first)? {
                    let within = found.byte() - first * crate::pattern::WORD as u64;
                    let address = chunk.as_ptr() as u64 + within;
                    faults.add(pattern, found, address);
                }
                first += (chunk.len() / crate::pattern::WORD) as u64;
            }
            passes += 1;
        }
        faults.tell(check, bytes);
        let seconds = start.elapsed().as_secs_f64();
        // Each pass writes and reads everything once.
        let rate = 2.0 * bytes as f64 * f64::from(passes) / seconds.max(1e-9) / 1e9;
        check.measure(Measurement::new(
            format!("{passes} patterns written and read"),
            rate,
            "GB/s",
        ));
        Ok(())
    }
}

/// Takes so much memory in chunks, or what there is.
fn take(
    check: &Check,
    device: &Device,
    wanted: usize,
    chunk: usize,
) -> Result<Vec<Buffer>, Failure> {
    let mut chunks = Vec::new();
    let mut taken = 0;
    while taken < wanted {
        let bytes = chunk.min(wanted - taken) / 4 * 4;
        if bytes == 0 {
            break;
        }
        match device.alloc(bytes) {
            Ok(buffer) => chunks.push(buffer),
            Err(Error::OutOfMemory { .. }) if taken > 0 => {
                let text = format!(
                    "the driver said that {} are free, but gave {}",
                    size(wanted),
                    size(taken)
                );
                check.info("scattered", text, "");
                break;
            }
            Err(error) => return Err(error.into()),
        }
        taken += bytes;
        check.progress(format!("taking {}", size(taken)));
    }
    Ok(chunks)
}

/// What was found over all patterns.
#[derive(Default)]
struct Faults {
    words: u64,
    patterns: Vec<String>,
    /// Byte offset in what is tested, device address, and bits of the first.
    first: Option<(u64, u64)>,
    set: u32,
    cleared: u32,
}

impl Faults {
    fn add(&mut self, pattern: Pattern, found: crate::pattern::Mismatch, address: u64) {
        self.words += found.words;
        self.set |= found.set;
        self.cleared |= found.cleared;
        let name = format!("{pattern:?}");
        if !self.patterns.contains(&name) {
            self.patterns.push(name);
        }
        if self.first.is_none_or(|(byte, _)| found.byte() < byte) {
            self.first = Some((found.byte(), address));
        }
    }

    fn tell(&self, check: &Check, tested: usize) {
        let Some((byte, address)) = self.first else {
            return;
        };
        check.error(
            "pattern",
            format!(
                "{} wrong words in {}, the first at byte {byte} of {tested} (device address {address:#x}); bits wrongly set {:#010x}, wrongly not set {:#010x}; found by {}",
                self.words,
                size(tested),
                self.set,
                self.cleared,
                self.patterns.join(", ")
            ),
            "the card's memory or its connection is at fault: take back overclocking and undervolting, see that it is not too hot, run this again; if it stays so, the card is broken",
        );
    }
}
