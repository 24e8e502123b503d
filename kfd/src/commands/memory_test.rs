//! `kfd memory-test`: patterns in device memory.

use super::{By, Verdict};
use crate::cli::bytes;
use crate::kernels::Kernels;
use crate::lane::{pieces, Lane, Wrong};
use crate::output::{rate, size, Output};
use crate::session::{Card, Choice, Session};
use crate::Result;
use candle_kfd::{Kind, Memory};
use clap::Args;
use memory_pattern::{Mismatch, Pattern, WORD};
use serde_json::json;
use std::time::Instant;

/// Bytes that are allocated at a time.
const BLOCK: u64 = 256 << 20;
/// Of what is free, so much at most: page tables need some.
const MOST: f64 = 0.9;

/// What is tested, and how.
#[derive(Args, Debug)]
pub struct Options {
    /// How much memory of each GPU: 64M, 2G; at most nine tenths of what is free.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = bytes)]
    size: u64,

    /// How often everything is tested, each time with other random words.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,

    /// Who writes and looks: kernels on the GPU, or SDMA with the host.
    #[arg(long, value_enum, default_value_t = By::Both)]
    by: By,
}

/// Tests the memory of the GPUs that were asked for, one after the other.
///
/// # Errors
/// candle-kfd's; [`Error::Wrong`](crate::Error::Wrong) if words were.
pub fn run(choice: &Choice, options: &Options) -> Result<()> {
    let Session {
        cards,
        mut output,
        interrupt,
        ..
    } = choice.begin("memory-test")?;
    let mut verdict = Verdict::new("memory-test");
    for card in &cards {
        let tester = Tester::new(card, options, &output)?;
        let steps = u64::from(options.passes) * tester.steps() * tester.memories.len() as u64;
        output.begin(&format!("memory of {}", card.name()), steps);
        'passes: for pass in 0..options.passes {
            for (which, memory) in tester.memories.iter().enumerate() {
                for test in Test::ALL {
                    for with in tester.ways(test) {
                        if interrupt.is_raised() {
                            break 'passes;
                        }
                        let start = Instant::now();
                        let seed = pass * 1000 + which as u32;
                        let wrong = tester.run(test, with, memory, seed)?;
                        tell(&output, card, test, with, memory, &wrong, start);
                        if wrong.is_some() {
                            verdict.wrong();
                        }
                        output.step(1);
                    }
                }
            }
        }
        output.end();
    }
    verdict.end(&mut output, interrupt.is_raised())
}

fn tell(
    output: &Output,
    card: &Card,
    test: Test,
    with: With<'_>,
    memory: &Memory,
    wrong: &Option<Wrong>,
    start: Instant,
) {
    let seconds = start.elapsed().as_secs_f64();
    let by = match with {
        With::Kernels(_) => "kernels",
        With::Sdma => "SDMA",
    };
    let found = wrong.as_ref().map(|wrong| {
        json!({
            "offset": wrong.offset,
            "address": wrong.address,
            "words": wrong.mismatch.words,
            "bits_set": wrong.mismatch.set,
            "bits_cleared": wrong.mismatch.cleared,
        })
    });
    let verdict = match wrong {
        None => "right".to_string(),
        Some(wrong) => format!("WRONG: {wrong}"),
    };
    output.say(
        "memory",
        &format!(
            "{}: {}, by {by}, {} at {:#x}: {verdict}",
            card.name(),
            test.name(),
            size(memory.len() as u64),
            memory.address(),
        ),
        json!({
            "gpu": card.index,
            "test": test.name(),
            "by": by,
            "address": memory.address(),
            "bytes": memory.len(),
            "seconds": seconds,
            "gb_per_second": rate(memory.len() as u64, seconds),
            "wrong": found,
        }),
    );
}

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    /// All of it is written, then all of it is looked at.
    Words(Pattern),
    /// A value everywhere; from the first word on each is looked at and turned, then from the last word on turned back:
    /// what disturbs its neighbours is found on the way.
    Inversions(u32),
}

impl Test {
    const ALL: [Test; 7] = [
        Test::Words(Pattern::WalkingOne),
        Test::Words(Pattern::WalkingZero),
        Test::Words(Pattern::Address),
        Test::Words(Pattern::AddressInverted),
        Test::Words(Pattern::Random),
        Test::Inversions(0),
        Test::Inversions(0x5555_5555),
    ];

    fn name(self) -> String {
        match self {
            Test::Words(pattern) => pattern.name().to_string(),
            Test::Inversions(value) => format!("moving inversions of {value:#010x}"),
        }
    }
}

/// Who writes and looks.
#[derive(Clone, Copy, Debug)]
enum With<'a> {
    Kernels(&'a Kernels),
    Sdma,
}

struct Tester<'a> {
    lane: &'a Lane,
    kernels: Option<&'a Kernels>,
    by_sdma: bool,
    memories: Vec<Memory>,
}

impl<'a> Tester<'a> {
    fn new(card: &'a Card, options: &Options, output: &Output) -> Result<Self> {
        let kernels = options.by.kernels(card, output)?;
        let mut left = match card.gpu.free_bytes() {
            Ok(free) => options.size.min((free as f64 * MOST) as u64),
            Err(_) => options.size,
        };
        left -= left % WORD as u64;
        let mut memories = Vec::new();
        while left > 0 {
            let bytes = left.min(BLOCK);
            memories.push(card.gpu.allocate(bytes.try_into()?, Kind::Vram)?);
            left -= bytes;
        }
        Ok(Tester {
            lane: &card.lane,
            by_sdma: options.by != By::Kernels,
            kernels,
            memories,
        })
    }

    /// Who does a test: values are SDMA's business, the engine fills and the host looks.
    fn ways(&self, test: Test) -> impl Iterator<Item = With<'a>> {
        let kernels = self.kernels.filter(|_| matches!(test, Test::Words(_)));
        let kernels = kernels.into_iter().map(With::Kernels);
        kernels.chain(self.by_sdma.then_some(With::Sdma))
    }

    fn steps(&self) -> u64 {
        let ways = Test::ALL
            .into_iter()
            .map(|test| self.ways(test).count() as u64);
        ways.sum()
    }

    fn run(&self, test: Test, with: With<'_>, memory: &Memory, seed: u32) -> Result<Option<Wrong>> {
        match (test, with) {
            (Test::Words(pattern), With::Sdma) => {
                self.lane.fill(memory, pattern, seed, 0)?;
                self.lane.check(memory, pattern, seed, 0)
            }
            (Test::Words(pattern), With::Kernels(kernels)) => {
                kernels.fill(memory, pattern, seed, 0)?;
                let found = kernels.check(memory, pattern, seed, 0)?;
                Ok(found.map(|mismatch| Wrong::of(memory, 0, mismatch)))
            }
            (Test::Inversions(value), _) => self.inversions(memory, value),
        }
    }

    fn inversions(&self, memory: &Memory, value: u32) -> Result<Option<Wrong>> {
        let words = (memory.len() / WORD) as u64;
        self.lane.fill_value(memory, 0, value, words)?;
        let mut piece = Vec::new();
        let mut turn = |at: usize, bytes: usize, is: u32| -> Result<Option<Wrong>> {
            piece.resize(bytes, 0);
            self.lane.fetch(memory, at as u64, &mut piece)?;
            let first = (at / WORD) as u64;
            if let Some(mismatch) = differing(&piece, is, first) {
                return Ok(Some(Wrong::of(memory, 0, mismatch)));
            }
            self.lane
                .fill_value(memory, at as u64, !is, (bytes / WORD) as u64)?;
            Ok(None)
        };
        for (at, bytes) in pieces(memory.len()) {
            if let Some(wrong) = turn(at, bytes, value)? {
                return Ok(Some(wrong));
            }
        }
        for (at, bytes) in pieces(memory.len()).rev() {
            if let Some(wrong) = turn(at, bytes, !value)? {
                return Ok(Some(wrong));
            }
        }
        for (at, bytes) in pieces(memory.len()) {
            if let Some(wrong) = turn(at, bytes, value)? {
                return Ok(Some(wrong));
            }
        }
        Ok(None)
    }
}

/// What differs from one value, in words counted from `first`.
fn differing(bytes: &[u8], value: u32, first: u64) -> Option<Mismatch> {
    let mut found = Mismatch::NONE_FOUND;
    for (i, word) in bytes.chunks_exact(WORD).enumerate() {
        let is = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if is != value {
            found[0] += 1;
            found[1] = found[1].min(first + i as u64);
            found[2] |= u64::from(is & !value);
            found[3] |= u64::from(value & !is);
        }
    }
    Mismatch::of(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_that_differs_is_named() {
        let mut bytes = vec![0x55; 64];
        assert_eq!(differing(&bytes, 0x5555_5555, 100), None);
        bytes[9] = 0x54;
        bytes[20] = 0x57;
        let found = differing(&bytes, 0x5555_5555, 100).unwrap();
        assert_eq!((found.words, found.first), (2, 102));
        assert_eq!((found.set, found.cleared), (2, 0x100));
    }
}
