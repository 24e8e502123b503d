//! Who computes a convolution.

use super::convolution::{data_type, Convolution, Descriptors, Failure};
use super::refusals::Refusals;
use super::session::{Operands, Prepared, Session};
use super::waiting::{self, Stage};
use super::{Mode, PATIENCE};
use crate::sys::miopen::{self, Solution};
use crate::{Device, Error, Event, Result};
use std::time::{Duration, Instant};

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

/// Why none of MIOpen's solutions is used.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    reason: String,
    /// Whether its compiler was waited for.
    waited: bool,
}

/// The first of MIOpen's solutions that can be made ready, of the few that are tried before patience is at its end.
fn first_ready(
    solutions: &[Solution],
    limit: usize,
    elapsed: impl Fn() -> Duration,
    mut ready: impl FnMut(&Solution) -> std::result::Result<(), String>,
) -> std::result::Result<Solution, Refusal> {
    let mut refusal = Refusal {
        reason: format!(
            "none of MIOpen's {} solutions is more than columns or a reference kernel with at most {limit} bytes of workspace",
            solutions.len(),
        ),
        waited: false,
    };
    for solution in worthy(solutions, limit).take(TRIED_SOLUTIONS) {
        if elapsed() > PATIENCE {
            refusal.reason = format!("MIOpen took more than {PATIENCE:?}: {}", refusal.reason);
            break;
        }
        refusal.waited = true;
        match ready(solution) {
            Ok(()) => return Ok(*solution),
            Err(reason) => refusal.reason = reason,
        }
    }
    Err(refusal)
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
        let (gpu, refusals) = (device.gpu(), Refusals::of(device));
        let chosen = match mode {
            Mode::Tune => {
                waiting::tell(device, self.library, Stage::Measure);
                refusals.remove(gpu, self.library, convolution);
                self.measure(device, &descriptors, operands, own)?
            }
            Mode::Fast | Mode::Off => match refusals.get(gpu, self.library, convolution) {
                Some(reason) => Err(format!("{reason} (found before)")),
                None => self.estimate(device, &descriptors).map_err(|refusal| {
                    if refusal.waited {
                        refusals.insert(gpu, self.library, convolution, &refusal.reason);
                    }
                    refusal.reason
                }),
            },
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
    ) -> std::result::Result<Solution, Refusal> {
        let solutions = self.solutions(descriptors).map_err(|failure| Refusal {
            reason: self.reason(failure),
            waited: false,
        })?;
        let limit = self.limit;
        let started = Instant::now();
        let ready = |solution: &Solution| {
            waiting::tell(device, self.library, Stage::Compile);
            self.ready(device, descriptors, solution)
        };
        first_ready(&solutions, limit, || started.elapsed(), ready)
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

    fn winograd(solution_id: u64) -> Solution {
        Solution {
            time: 1.0,
            workspace_size: 0,
            solution_id,
            algorithm: miopen::ALGORITHM_WINOGRAD,
        }
    }

    #[test]
    fn solutions_are_tried_until_one_is_ready_or_patience_ends() {
        use std::cell::{Cell, RefCell};
        let solutions = [84, 107, 108, 109].map(winograd);
        let (time, tried) = (Cell::new(Duration::ZERO), RefCell::new(Vec::new()));
        let try_all = |seconds: u64, good: Option<u64>| {
            time.set(Duration::ZERO);
            tried.borrow_mut().clear();
            let ready = |solution: &Solution| {
                time.set(time.get() + Duration::from_secs(seconds));
                tried.borrow_mut().push(solution.solution_id);
                match good == Some(solution.solution_id) {
                    true => Ok(()),
                    false => Err("it does not compile".to_string()),
                }
            };
            first_ready(&solutions, 100, || time.get(), ready).map(|found| found.solution_id)
        };
        assert_eq!(try_all(1, Some(107)), Ok(107));
        assert_eq!(*tried.borrow(), [84, 107]);
        // One that is slow and good is used: what it took is spent.
        assert_eq!(try_all(60, Some(84)), Ok(84));
        let refusal = try_all(1, None).unwrap_err();
        assert_eq!(
            (refusal.reason.as_str(), refusal.waited),
            ("it does not compile", true)
        );
        assert_eq!(*tried.borrow(), [84, 107, 108]);
        let refusal = try_all(60, Some(107)).unwrap_err();
        assert!(
            refusal.reason.contains("more than 20s") && refusal.waited,
            "{refusal:?}"
        );
        assert_eq!(*tried.borrow(), [84]);
        // Where nothing is worth it, nothing was waited for.
        let none = first_ready(&[], 100, || Duration::ZERO, |_| Ok(())).unwrap_err();
        assert!(!none.waited && none.reason.contains("more than columns"));
    }
}
