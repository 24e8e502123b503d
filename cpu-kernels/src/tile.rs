//! Rows times columns, as many as fit the registers.

use crate::lanes::{Lanes, Level};

/// With what the sums of a product begin.
#[derive(Clone, Copy)]
pub(crate) enum Start {
    /// Nothing.
    Zero,
    /// What stands in the output.
    Output,
    /// A number for each row.
    Rows(*const f32),
    /// A number for each column.
    Columns(*const f32),
}

/// A product of `rows` rows and `columns` columns over `depth` numbers each.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) depth: usize,
    /// Rows, each contiguous, so far apart.
    pub(crate) left: (*const f32, usize),
    /// Numbers of all columns, each line contiguous, so far apart. What makes whole vectors of a line may be read.
    pub(crate) right: (*const f32, usize),
    /// Rows so far apart.
    pub(crate) out: (*mut f32, usize),
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) start: Start,
}

/// How many rows are multiplied at once with this many vectors.
pub(crate) fn most_rows(level: Level, vectors: usize) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => [12, 12, 8, 6][vectors - 1],
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => [12, 6, 4, 2][vectors - 1],
        Level::Plain => 4,
    }
}

/// The most vectors of columns side by side.
pub(crate) fn most_vectors(level: Level) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => 4,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => 2,
        Level::Plain => 1,
    }
}

/// Lanes of a vector.
pub(crate) fn lanes(level: Level) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => crate::lanes::Avx512::N,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => crate::lanes::Avx2::N,
        Level::Plain => crate::lanes::Plain::N,
    }
}

/// `M` rows of `p` from row `first` on, with `V` vectors.
#[inline(always)]
unsafe fn tile<L: Lanes, const M: usize, const V: usize>(p: &Product, first: usize) {
    let out = p.out.0.add(first * p.out.1);
    let left: [*const f32; M] =
        std::array::from_fn(|m| p.left.0.wrapping_add((first + m) * p.left.1));
    // Lanes of the last vector that are columns.
    let rest = p.columns - (V - 1) * L::N;
    let mut sums = [[L::splat(0.0); V]; M];
    match p.start {
        Start::Zero => {}
        Start::Output => {
            for (m, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    let at = out.add(m * p.out.1 + v * L::N);
                    *sum = match v + 1 == V && rest < L::N {
                        true => L::load_part(at, rest),
                        false => L::load(at),
                    };
                }
            }
        }
        Start::Rows(values) => {
            for (m, sums) in sums.iter_mut().enumerate() {
                *sums = [L::splat(*values.add(first + m)); V];
            }
        }
        Start::Columns(values) => {
            let mut line = [L::splat(0.0); V];
            for (v, value) in line.iter_mut().enumerate() {
                let at = values.add(v * L::N);
                *value = match v + 1 == V && rest < L::N {
                    true => L::load_part(at, rest),
                    false => L::load(at),
                };
            }
            sums = [line; M];
        }
    }
    let mut right = p.right.0;
    for k in 0..p.depth {
        let mut line = [L::splat(0.0); V];
        for (v, value) in line.iter_mut().enumerate() {
            *value = L::load(right.wrapping_add(v * L::N));
        }
        for m in 0..M {
            let x = L::splat(*left[m].add(k));
            for v in 0..V {
                sums[m][v] = L::fma(x, line[v], sums[m][v]);
            }
        }
        right = right.wrapping_add(p.right.1);
    }
    for (m, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            let at = out.add(m * p.out.1 + v * L::N);
            match v + 1 == V && rest < L::N {
                true => L::store_part(at, *sum, rest),
                false => L::store(at, *sum),
            }
        }
    }
}

/// A tile of each number of rows.
macro_rules! tiles {
    ($name:ident, $lanes:ty, $(#[$feature:meta])? $([$vectors:literal: $($rows:literal)*])*) => {
        #[doc = "`rows` rows of `p` from row `first` on, with `vectors` vectors."]
        $(#[$feature])?
        unsafe fn $name(p: &Product, vectors: usize, first: usize, rows: usize) {
            match (vectors, rows) {
                $($(($vectors, $rows) => tile::<$lanes, $rows, $vectors>(p, first),)*)*
                _ => unreachable!("{rows} rows of {vectors} vectors"),
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
tiles!(avx512, crate::lanes::Avx512, #[target_feature(enable = "avx512f")]
    [1: 1 2 3 4 5 6 7 8 9 10 11 12] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]);
#[cfg(target_arch = "x86_64")]
tiles!(avx2, crate::lanes::Avx2, #[target_feature(enable = "avx2,fma")]
    [1: 1 2 3 4 5 6 7 8 9 10 11 12] [2: 1 2 3 4 5 6]);
tiles!(plain, crate::lanes::Plain, [1: 1 2 3 4]);

/// The product.
///
/// # Safety
/// The processor is of this level, and pointers are good for what `p` says.
pub(crate) unsafe fn multiply(level: Level, p: &Product) {
    let vectors = p.columns.div_ceil(lanes(level));
    // As even as may be, so that none of the blocks is so small that it waits for its own sums.
    let blocks = p.rows.div_ceil(most_rows(level, vectors));
    let mut first = 0;
    for block in 0..blocks {
        let rows = (p.rows - first).div_ceil(blocks - block);
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512(p, vectors, first, rows),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2(p, vectors, first, rows),
            Level::Plain => plain(p, vectors, first, rows),
        }
        first += rows;
    }
}
