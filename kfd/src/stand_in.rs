//! The kernels of memory-pattern for GPUs of the mock, which run closures by name.

use candle_kfd::mock::{Fault, Mock, MockLaunch};
use memory_pattern::{work_on_host, Mismatch, Pattern, WORD};

/// Words that are read or written at a time.
const PIECE: usize = 1 << 16;

/// Teaches the mock the kernels.
pub fn register(mock: &Mock) {
    mock.kernel("pattern_fill", |launch| {
        let (words, count, first) = (launch.u64(0), launch.u64(8), launch.u64(16));
        let (pattern, seed) = (pattern(launch.u32(24)), launch.u32(28));
        let mut piece = Vec::new();
        for (at, count) in pieces(count) {
            piece.resize(count * WORD, 0);
            pattern.fill(seed, first + at, &mut piece);
            launch.memory.write(words + at * WORD as u64, &piece)?;
        }
        Ok(())
    });
    mock.kernel("pattern_check", |launch| {
        let (words, count, first) = (launch.u64(0), launch.u64(8), launch.u64(16));
        let (pattern, seed) = (pattern(launch.u32(24)), launch.u32(28));
        let mut should = Vec::new();
        look(launch, words, count, launch.u64(32), first, |at, is| {
            should.resize(is.len(), 0);
            pattern.fill(seed, first + at, &mut should);
            Ok(should.clone())
        })
    });
    mock.kernel("pattern_compare", |launch| {
        let (words, with, count) = (launch.u64(0), launch.u64(8), launch.u64(16));
        look(launch, words, count, launch.u64(24), 0, |at, is| {
            let mut should = vec![0; is.len()];
            launch.memory.read(with + at * WORD as u64, &mut should)?;
            Ok(should)
        })
    });
    mock.kernel("pattern_work", |launch| {
        let (words, count) = (launch.u64(0), launch.u64(8));
        let result = work_on_host(count as usize, launch.u32(16), launch.u32(20));
        launch.memory.write(words, &result)
    });
    mock.kernel("pattern_copy", |launch| {
        let (to, from, count) = (launch.u64(0), launch.u64(8), launch.u64(16));
        let mut piece = Vec::new();
        for (at, count) in pieces(count) {
            piece.resize(count * WORD, 0);
            launch.memory.read(from + at * WORD as u64, &mut piece)?;
            launch.memory.write(to + at * WORD as u64, &piece)?;
        }
        Ok(())
    });
}

fn pattern(number: u32) -> Pattern {
    let known = Pattern::ALL
        .into_iter()
        .find(|&known| known as u32 == number);
    known.unwrap_or(Pattern::WalkingZero)
}

/// Where pieces of so many words begin, and how many words each has.
fn pieces(count: u64) -> impl Iterator<Item = (u64, usize)> {
    let pieces = count.div_ceil(PIECE as u64);
    (0..pieces).map(move |i| {
        let at = i * PIECE as u64;
        (at, (count - at).min(PIECE as u64) as usize)
    })
}

/// Compares words with what they should be, and adds what differs to the four numbers at `found`.
fn look(
    launch: &MockLaunch,
    words: u64,
    count: u64,
    found: u64,
    first: u64,
    mut should: impl FnMut(u64, &[u8]) -> Result<Vec<u8>, Fault>,
) -> Result<(), Fault> {
    let memory = &launch.memory;
    let mut all = Mismatch::NONE_FOUND;
    for (i, number) in all.iter_mut().enumerate() {
        *number = memory.load64(found + 8 * i as u64)?;
    }
    let mut is = Vec::new();
    for (at, count) in pieces(count) {
        is.resize(count * WORD, 0);
        memory.read(words + at * WORD as u64, &mut is)?;
        let should = should(at, &is)?;
        for (i, (is, should)) in is
            .chunks_exact(WORD)
            .zip(should.chunks_exact(WORD))
            .enumerate()
        {
            let [is, should] =
                [is, should].map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            if is != should {
                all[0] += 1;
                all[1] = all[1].min(first + at + i as u64);
                all[2] |= u64::from(is & !should);
                all[3] |= u64::from(should & !is);
            }
        }
    }
    for (i, number) in all.into_iter().enumerate() {
        memory.store64(found + 8 * i as u64, number)?;
    }
    Ok(())
}
