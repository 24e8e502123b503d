//! What is missing for a device, compiled while it is told how far.

use super::pool::compile;
use crate::process::available_memory;
use crate::progress::count_bar;
use crate::serve::Progress;
use crate::Result;
use candle_core::Device;
use candle_rocm::precompile::{missing, own_products, CompileJob};
use candle_rocm::CodeObject;
use std::time::{Duration, Instant};

/// Memory that a process takes which compiles, at most: LLVM and the largest of the sources.
const PROCESS_BYTES: u64 = 1 << 30;
/// How often a log line tells how far it is.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// The arguments about compiling ahead.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct CompileArgs {
    /// Processes that compile kernels which are not in the cache, before the model is loaded; 0 compiles each when it
    /// is first used. As many as there are cores and memory for if absent.
    #[arg(long, value_name = "N")]
    compile_jobs: Option<usize>,
}

/// What was compiled.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compiled {
    /// Code objects that were compiled.
    pub objects: usize,
    /// Those that could not be, and why.
    pub failed: Vec<(CodeObject, String)>,
    /// Processes that compiled.
    pub processes: usize,
    /// The time that it took.
    pub time: Duration,
}

impl CompileArgs {
    /// Compiles what is missing of `wanted` for a GPU, the first ones first. Trouble is logged and no failure: what is
    /// not compiled now is when it is used, and tells then what is wrong.
    pub fn ahead(&self, device: &Device, wanted: &[CodeObject], progress: &Progress) {
        let Device::Rocm(device) = device else {
            return;
        };
        if self.compile_jobs == Some(0) {
            return;
        }
        let device = device.device();
        let wanted = [wanted, &own_products(device, wanted)].concat();
        let jobs = match missing(&device.properties().full_arch, &wanted) {
            Ok(jobs) if jobs.is_empty() => return,
            Ok(jobs) => jobs,
            Err(error) => {
                tracing::warn!("kernels are compiled when they are used: {error}");
                return;
            }
        };
        if let Err(error) = self.run(jobs, progress) {
            tracing::warn!("kernels are compiled when they are used: {error}");
        }
    }

    /// Does jobs, with a bar on a terminal and log lines elsewhere, and logs failures.
    ///
    /// # Errors
    /// [`crate::Error::Runtime`] if threads cannot be started.
    pub(super) fn run(&self, jobs: Vec<CompileJob>, progress: &Progress) -> Result<Compiled> {
        let total = jobs.len();
        let processes = self.processes(total);
        let what = |done: usize| format!("compiling kernels {done}/{total}");
        let bar = count_bar("compiling kernels", total as u64, "files");
        let begun = Instant::now();
        let mut logged = begun;
        let (mut done, mut failed) = (0, Vec::new());
        progress.expect(total as u64);
        progress.set(0);
        progress.begin(&what(0));
        compile(jobs, processes, &mut |job, outcome| {
            done += 1;
            bar.inc(1);
            progress.set(done as u64);
            progress.tell(&what(done));
            if let Err(reason) = outcome {
                let object = &job.object;
                tracing::warn!("{object} is not compiled, its first use will try again: {reason}");
                failed.push((object.clone(), reason.clone()));
            }
            if bar.is_hidden() && logged.elapsed() >= LOG_INTERVAL {
                logged = Instant::now();
                tracing::info!("{}", what(done));
            }
        })?;
        bar.finish_and_clear();
        let time = begun.elapsed();
        let objects = done - failed.len();
        tracing::info!(
            "compiled {objects} of {total} files of kernels in {:.1} s, in {processes} processes",
            time.as_secs_f64()
        );
        // The next stage counts anew.
        progress.expect(0);
        progress.set(0);
        Ok(Compiled {
            objects,
            failed,
            processes,
            time,
        })
    }

    /// How many processes for so many jobs.
    pub fn processes(&self, jobs: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let room = available_memory().map_or(1, |bytes| (bytes / PROCESS_BYTES) as usize);
        let most = self.compile_jobs.unwrap_or(cores.min(room));
        most.clamp(1, jobs.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_processes_than_jobs_and_at_least_one() {
        let asked = |n| CompileArgs {
            compile_jobs: Some(n),
        };
        assert_eq!(asked(4).processes(9), 4);
        assert_eq!(asked(4).processes(3), 3);
        assert_eq!(asked(0).processes(3), 1);
        let own = CompileArgs::default().processes(1000);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        assert!((1..=cores).contains(&own), "{own}");
    }
}
