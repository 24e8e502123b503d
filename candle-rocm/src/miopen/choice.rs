//! Who computes a convolution.

use super::convolution::{data_type, Convolution, Descriptors, Failure};
use super::session::{Operands, Prepared, Session};
use super::Mode;
use crate::sys::miopen::{self, Solution};
use crate::{Device, Error, Event, Result};
use std::time::Duration;

/// MIOpen's numbers of its reference kernels, forward and transposed: one thread per output element and no reuse of
/// what was loaded.
const NAIVE_SOLVERS: [u64; 2] = [85, 86];
/// Solutions that are compiled at most: builds of MIOpen may lack the sources of whole families of kernels.
const TRIED_SOLUTIONS: usize = 3;
/// Solutions that are measured against the own kernels; MIOpen has ordered them by then.
const MEASURED_SOLUTIONS: usize = 4;
/// Runs of a measurement, after one that warms up.
const MEASURED_RUNS: u32 = 3;

/// Who computes a convolution.
pub(super) enum Choice {
    /// The own kernels, and why.
    Own(String),
    /// MIOpen.
    Library(Prepared),
}

impl Choice {
    pub fn solver(&self) -> std::result::Result<u64, String> {
        match self {
            Choice::Own(reason) => Err(reason.clone()),
            Choice::Library(prepared) => Ok(prepared.solution.solution_id),
        }
    }
}

/// What of MIOpen's solutions is worth more than the own kernels, by what is said in the module's description.
fn worthy(solutions: &[Solution], limit: usize) -> impl Iterator<Item = &Solution> {
    (solutions.iter())
        .take_while(|solution| solution.algorithm != miopen::ALGORITHM_GEMM)
        .filter(move |solution| !is_naive(solution) && solution.workspace_size <= limit)
}

fn is_naive(solution: &Solution) -> bool {
    solution.algorithm == miopen::ALGORITHM_DIRECT && NAIVE_SOLVERS.contains(&solution.solution_id)
}

impl Session {
    /// Decides about a convolution. Errors are those of the own kernels alone; whatever MIOpen cannot do is theirs.
    pub fn choose(
        &mut self,
        device: &Device,
        mode: Mode,
        convolution: &Convolution,
        operands: Operands,
        own: &dyn Fn() -> Result<()>,
    ) -> Result<Choice> {
        let descriptors = match self.describe(convolution) {
            Ok(descriptors) => descriptors,
            Err(reason) => return Ok(Choice::Own(reason)),
        };
        let chosen = match mode {
            Mode::Tune => self.measure(device, &descriptors, operands, own)?,
            Mode::Fast | Mode::Off => self.estimate(device, &descriptors),
        };
        Ok(match chosen {
            Err(reason) => Choice::Own(reason),
            Ok(solution) => Choice::Library(Prepared {
                convolution: *convolution,
                descriptors,
                solution,
            }),
        })
    }

    fn describe(&self, convolution: &Convolution) -> std::result::Result<Descriptors, String> {
        let reason = |failure| self.reason(failure);
        let data_type = data_type(convolution.dtype)
            .ok_or_else(|| format!("MIOpen does not convolve {}", convolution.dtype))?;
        let descriptors = Descriptors::new(self.library, data_type, convolution).map_err(reason)?;
        // MIOpen does not compare the output's size with the options when it convolves.
        let output = descriptors.output().map_err(reason)?;
        if output != convolution.y {
            return Err(format!("MIOpen expects an output of {output:?}"));
        }
        Ok(descriptors)
    }

    fn estimate(
        &mut self,
        device: &Device,
        descriptors: &Descriptors,
    ) -> std::result::Result<Solution, String> {
        let solutions = (self.solutions(descriptors)).map_err(|failure| self.reason(failure))?;
        let mut refusal = format!(
            "none of MIOpen's {} solutions is more than columns or a reference kernel with at most {} bytes of workspace",
            solutions.len(),
            self.limit
        );
        for solution in worthy(&solutions, self.limit).take(TRIED_SOLUTIONS) {
            match self.ready(device, descriptors, solution) {
                Ok(()) => return Ok(*solution),
                Err(reason) => refusal = reason,
            }
        }
        Err(refusal)
    }

    /// Compiles a solution and reserves its workspace.
    fn ready(
        &mut self,
        device: &Device,
        descriptors: &Descriptors,
        solution: &Solution,
    ) -> std::result::Result<(), String> {
        (self.compile(descriptors, solution)).map_err(|failure| self.reason(failure))?;
        (self.reserve(device, solution.workspace_size)).map_err(|error| error.to_string())
    }

    /// The fastest of MIOpen's solutions, unless the own kernels are faster.
    fn measure(
        &mut self,
        device: &Device,
        descriptors: &Descriptors,
        operands: Operands,
        own: &dyn Fn() -> Result<()>,
    ) -> Result<std::result::Result<Solution, String>> {
        let own_time = time(device, own)?;
        // It fails as a whole if it cannot compile one of the solutions; immediate mode's are left to measure then.
        let found = self.find(device, descriptors, operands);
        let solutions = match self.solutions(descriptors) {
            Ok(solutions) => solutions,
            Err(failure) => return Ok(Err(self.reason(failure))),
        };
        let mut fastest: Option<(Duration, Solution)> = None;
        let within = |s: &&Solution| s.workspace_size <= self.limit;
        let measured: Vec<Solution> = (solutions.iter().filter(within))
            .take(MEASURED_SOLUTIONS)
            .copied()
            .collect();
        for solution in measured {
            if self.ready(device, descriptors, &solution).is_err() {
                continue;
            }
            let run = || {
                self.enqueue(descriptors, &solution, operands)
                    .map_err(|failure| self.error(failure, "while measuring"))
            };
            match time(device, &run) {
                Ok(time) if fastest.is_none_or(|(best, _)| time < best) => {
                    fastest = Some((time, solution));
                }
                Ok(_) | Err(Error::MiOpen { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(match fastest {
            Some((time, solution)) if time < own_time => Ok(solution),
            Some((time, solution)) => Err(format!(
                "measured: {own_time:?}, and {time:?} by MIOpen's solver {}",
                solution.solution_id
            )),
            None => Err(match found {
                Ok(()) => "none of MIOpen's solutions can be measured".to_string(),
                Err(failure) => self.reason(failure),
            }),
        })
    }

    fn reason(&self, failure: Failure) -> String {
        self.error(failure, "the own kernels compute").to_string()
    }
}

/// Device time of one run.
fn time(device: &Device, run: &dyn Fn() -> Result<()>) -> Result<Duration> {
    run()?;
    let (start, stop) = (Event::new(device)?, Event::new(device)?);
    start.record(device.stream())?;
    for _ in 0..MEASURED_RUNS {
        run()?;
    }
    stop.record(device.stream())?;
    stop.synchronize()?;
    Ok(stop.elapsed_since(&start)? / MEASURED_RUNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_worth_it() {
        let solution = |solution_id, algorithm, workspace_size| Solution {
            time: 1.0,
            workspace_size,
            solution_id,
            algorithm,
        };
        let (direct, winograd) = (miopen::ALGORITHM_DIRECT, miopen::ALGORITHM_WINOGRAD);
        let naive = solution(85, direct, 0);
        let product = solution(91, miopen::ALGORITHM_GEMM, 0);
        let large = solution(107, miopen::ALGORITHM_IMPLICIT_GEMM, 101);
        let good = solution(84, winograd, 100);
        let assembly = solution(1, direct, 0);
        let ids = |solutions: &[Solution]| -> Vec<u64> {
            worthy(solutions, 100).map(|s| s.solution_id).collect()
        };
        assert_eq!(ids(&[naive, large, good, assembly, product]), [84, 1]);
        assert_eq!(ids(&[good, product, assembly]), [84]);
        assert!(ids(&[naive, large]).is_empty());
        assert!(ids(&[product, good]).is_empty());
        assert!(ids(&[]).is_empty());
    }
}
