//! Products of rows with columns that are packed into panels as they are needed.

use crate::lanes::Level;
use crate::parallel::{On, Shared};
use crate::tile::{lanes, most_rows, most_vectors, multiply, Product, Start};
use std::cell::RefCell;
use std::ops::Range;

/// Numbers of each column that are multiplied before the next: a panel of them stays in the cache that a core has for
/// itself.
const DEPTH: usize = 512;
/// Columns whose panels are packed at once.
const TILE: usize = 256;
/// Multiplications that are worth a task.
const LEAST: usize = 1 << 19;

/// What a product reads as its columns.
pub(crate) trait Columns: Sync {
    /// Writes lines `depth` of the columns `columns`, each line `width` numbers long, of which those behind the columns
    /// are any numbers.
    ///
    /// # Safety
    /// `to` has `depth.len()` lines of `width`, which is at least the number of columns.
    unsafe fn pack(
        &self,
        level: Level,
        depth: Range<usize>,
        columns: Range<usize>,
        width: usize,
        to: *mut f32,
    );
}

/// `rows` rows, each contiguous and `stride` apart, times columns.
pub(crate) struct Job<'a, C> {
    pub(crate) depth: usize,
    pub(crate) left: (&'a [f32], usize),
    pub(crate) right: &'a C,
    /// First element, and how far rows are apart.
    pub(crate) out: (usize, usize),
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// A number for each row, or for each column, to begin with.
    pub(crate) bias: Option<Bias<'a>>,
}

/// What a product is added to.
#[derive(Clone, Copy)]
pub(crate) enum Bias<'a> {
    /// A number for each row.
    Rows(&'a [f32]),
    /// A number for each column.
    Columns(&'a [f32]),
}

/// A part of a job.
#[derive(Debug)]
pub(crate) struct Task {
    job: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) columns: Range<usize>,
}

impl Task {
    /// A part of a single job.
    pub(crate) fn new(rows: Range<usize>, columns: Range<usize>) -> Self {
        Self {
            job: 0,
            rows,
            columns,
        }
    }
}

thread_local! {
    static PANELS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The products of all jobs, which write to different parts of `out`.
///
/// # Safety
/// Rows and outputs of the jobs lie within their slices, and outputs do not overlap.
pub(crate) unsafe fn multiply_all<C: Columns>(on: On, jobs: &[Job<C>], out: Shared) {
    let tasks = tasks(on, jobs);
    on.for_each(tasks.len(), usize::MAX, |i| {
        let task = &tasks[i];
        PANELS.with_borrow_mut(|panels| {
            // SAFETY: the caller's.
            unsafe { run(on.level, &jobs[task.job], task, out, panels) }
        })
    });
}

fn tasks<C: Columns>(on: On, jobs: &[Job<C>]) -> Vec<Task> {
    let threads = on.threads.count();
    let mut tasks = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        if job.rows == 0 || job.columns == 0 {
            continue;
        }
        // Four for each thread, so that one that is late has few left to do.
        let work = job.rows * job.columns * job.depth.max(1);
        let wanted = match threads {
            1 => 1,
            threads => (4 * threads).div_ceil(jobs.len()).min(work / LEAST).max(1),
        };
        // By columns first, as these are packed once for all their rows.
        let vector = lanes(on.level);
        let most = job.columns.div_ceil(most_vectors(on.level) * vector);
        let by_columns = wanted.min(most);
        let by_rows = wanted.div_ceil(by_columns).min(job.rows.div_ceil(16));
        for columns in split(job.columns, by_columns, vector) {
            for rows in split(job.rows, by_rows, 1) {
                tasks.push(Task {
                    job: number,
                    rows,
                    columns: columns.clone(),
                });
            }
        }
    }
    tasks
}

/// `count` numbers in `parts` parts that begin at multiples of `unit`, as even as may be.
pub(crate) fn split(count: usize, parts: usize, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let units = count.div_ceil(unit);
    let parts = parts.clamp(1, units.max(1));
    (0..parts).map(move |i| {
        let at = |i: usize| (i * units / parts * unit).min(count);
        at(i)..at(i + 1)
    })
}

/// Does a task of a job; rows of the output are counted from `out` on.
///
/// # Safety
/// As that of [`multiply_all`].
pub(crate) unsafe fn run<C: Columns>(
    level: Level,
    job: &Job<C>,
    task: &Task,
    out: Shared,
    panels: &mut Vec<f32>,
) {
    for columns in split(
        task.columns.len(),
        task.columns.len().div_ceil(TILE),
        lanes(level),
    ) {
        let columns = task.columns.start + columns.start..task.columns.start + columns.end;
        run_tile(level, job, &task.rows, &columns, out, panels);
    }
}

unsafe fn run_tile<C: Columns>(
    level: Level,
    job: &Job<C>,
    rows: &Range<usize>,
    columns: &Range<usize>,
    out: Shared,
    panels: &mut Vec<f32>,
) {
    let vector = lanes(level);
    let parts = columns.len().div_ceil(most_vectors(level) * vector);
    let parts = || {
        split(columns.len(), parts, vector)
            .map(|part| columns.start + part.start..columns.start + part.end)
    };
    let wide = columns.len().next_multiple_of(vector);
    panels.resize(panels.len().max(wide * DEPTH.min(job.depth)), 0.0);
    let at_once = most_rows(level, most_vectors(level));
    let mut begin = 0;
    loop {
        let depth = begin..(begin + DEPTH).min(job.depth);
        let mut to = panels.as_mut_ptr();
        for part in parts() {
            let width = part.len().next_multiple_of(vector);
            job.right.pack(level, depth.clone(), part, width, to);
            to = to.add(width * depth.len());
        }
        // Few rows at a time: they stay in the innermost cache while panels go by.
        for few in split(rows.len(), rows.len().div_ceil(at_once), 1) {
            let row = rows.start + few.start;
            let mut panel = panels.as_ptr();
            for part in parts() {
                let width = part.len().next_multiple_of(vector);
                let left = job.left.0.as_ptr().add(row * job.left.1 + begin);
                let to = job.out.0 + row * job.out.1 + part.start;
                let product = Product {
                    depth: depth.len(),
                    left: (left, job.left.1),
                    right: (panel, width),
                    out: (out.pointer().wrapping_add(to), job.out.1),
                    rows: few.len(),
                    columns: part.len(),
                    start: match (begin, job.bias) {
                        (0, None) => Start::Zero,
                        (0, Some(Bias::Rows(bias))) => Start::Rows(bias[row..].as_ptr()),
                        (0, Some(Bias::Columns(bias))) => {
                            Start::Columns(bias[part.start..].as_ptr())
                        }
                        _ => Start::Output,
                    },
                };
                multiply(level, &product);
                panel = panel.add(width * depth.len());
            }
        }
        begin = depth.end;
        if begin >= job.depth {
            break;
        }
    }
}
