//! Checks of ported units without a GPU: compiled for every arch, run on the simulator in both widths of waves and in
//! several orders of threads, with every load and store looked at, and compared with a reference.
//!
//! ```no_run
//! use rocm_port::check::{Case, Check, DType, Fill, Targets};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let unit: rocm_port::model::PortedUnit = todo!();
//! let square = Case::new("rocm_usqr_f32")
//!     .size("n", [1, 31, 1000])
//!     .grid("ceil(n / 256)")
//!     .block(256)
//!     .value("numel", DType::U64, "n")
//!     .input("x", DType::F32, "n", Fill::uniform(-2.0, 2.0))
//!     .output("y", DType::F32, "n")
//!     .reference(|io| {
//!         let x = io.input("x");
//!         io.set("y", x.iter().map(|v| v * v));
//!     });
//! let report = Check::new(&unit)
//!     .compile_for(Targets::Generations)
//!     .archs(["gfx1100", "gfx942"])
//!     .orders(3)
//!     .case(square)
//!     .run()?;
//! assert!(report.is_clean(), "{report}");
//! # Ok(())
//! # }
//! ```
//!
//! | You want | Use |
//! |---|---|
//! | a launch with its inputs and what it should give | [`Case`] |
//! | kinds of inputs | [`Fill`] |
//! | a reference in Rust | [`Case::reference`], which gets an [`Io`] |
//! | how far outputs may be off | [`Tolerance`] |
//! | what a backward kernel should give | [`gradient`] |
//! | the entry of an instance | [`entry`] |
//! | cases in a file | [`read_cases`], and [`new_cases`] for a first one |
//!
//! Kernels run in processes of the program `rocm-port` with the hidden option `check --worker`, so that a wild kernel
//! takes only its own process down. A program that uses this as a library finds that one beside itself, in the folder
//! above (as tests do), or on `PATH`.

mod case;
mod case_file;
mod compile;
mod dtype;
mod expression;
mod fill;
mod finding;
mod golden;
mod io;
mod judge;
mod npy;
mod prepare;
mod random;
mod report;
mod run;
mod runtime;
mod session;
mod shrink;
mod simulator;
mod template;
mod tolerance;
mod wire;
mod worker;

pub use case::{dims, Argument, Buffer, Case, Dims, Field, Function, Given, Reference, Role};
pub use case_file::{case_files, parse_cases, read_cases, CaseFileError};
pub use compile::{supported, Resources, Targets};
pub use dtype::DType;
pub use expression::{evaluate, evaluate_whole, ExpressionError, Names, Number};
pub use fill::{Blocks, Fill, Making, Word};
pub use finding::{Finding, Kind};
pub use io::{gradient, Io};
pub use random::Random;
pub use report::{KernelReport, Report};
pub use template::new_cases;
pub use tolerance::{Difference, Expected, Tolerance};
pub use worker::serve;

use crate::model::{ArgumentKind, PortedUnit};
use candle_rocm_kernels::{translation_unit, SpliceError};
use golden::Golden;
use prepare::Data;
use report::Parts;
use run::{findings, launches, Launches, Obstacle, Plan, Seen};
use session::{Setup, Source};
use shrink::Shrinker;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Archs that kernels run on if nothing else is said: waves of 32, and of 64.
pub const ARCHS: [&str; 2] = ["gfx1100", "gfx942"];

/// Why a check could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The unit includes a header that candle-rocm-kernels does not have.
    #[error(transparent)]
    Splice(#[from] SpliceError),
    /// An arch that nobody knows.
    #[error("there is no arch {0:?}; gfx1100 and gfx942 are two")]
    Arch(String),
    /// Kernels cannot run here.
    #[error("kernels cannot run: {0}")]
    Worker(String),
    /// Outputs could not be recorded.
    #[error("cannot record outputs: {0}")]
    Record(String),
    /// Waves of both widths, or several orders, were asked for on a GPU.
    #[error("a GPU has one arch and one order of threads; leave out archs and orders")]
    Gpu,
}

/// The entry that an instance of a kernel has in a unit: by the kernel's name with or without namespaces, and its
/// template arguments as the unit has them.
pub fn entry<'a>(unit: &'a PortedUnit, kernel: &str, template: &[&str]) -> Option<&'a str> {
    let named = |name: &str| name == kernel || name.rsplit("::").next() == Some(kernel);
    let found = unit
        .kernels
        .iter()
        .find(|each| named(&each.kernel) && each.template == template);
    found.map(|found| found.entry.as_str())
}

/// What tells how far a check is.
type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// A check of a unit; see the [module](self).
#[derive(Clone)]
pub struct Check<'a> {
    unit: &'a PortedUnit,
    options: Vec<String>,
    targets: Targets,
    archs: Vec<String>,
    orders: usize,
    seed: u64,
    limit: Duration,
    jobs: usize,
    shrinks: bool,
    on_gpu: bool,
    record: Option<PathBuf>,
    golden: Option<PathBuf>,
    cases: Vec<Case>,
    progress: Progress,
}

impl<'a> Check<'a> {
    /// A check that compiles for all archs, and runs on [`ARCHS`] in three orders of threads.
    pub fn new(unit: &'a PortedUnit) -> Self {
        Check {
            unit,
            // CUDA's texts read floats as vectors and integers as they like.
            options: vec!["-fno-strict-aliasing".to_string()],
            targets: Targets::All,
            archs: ARCHS.map(str::to_string).to_vec(),
            orders: 3,
            seed: 0,
            limit: Duration::from_secs(30),
            jobs: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            shrinks: true,
            on_gpu: false,
            record: None,
            golden: None,
            cases: Vec::new(),
            progress: Arc::new(|_| ()),
        }
    }

    /// Options for the compilers, such as `-DNAME=1`.
    pub fn options<T: Into<String>>(mut self, options: impl IntoIterator<Item = T>) -> Self {
        self.options.extend(options.into_iter().map(Into::into));
        self
    }

    /// Archs to compile for.
    pub fn compile_for(mut self, targets: Targets) -> Self {
        self.targets = targets;
        self
    }

    /// Archs to run on, simulated.
    pub fn archs<T: Into<String>>(mut self, archs: impl IntoIterator<Item = T>) -> Self {
        self.archs = archs.into_iter().map(Into::into).collect();
        self
    }

    /// How many orders of threads are tried: the first is ascending, others are shuffled.
    pub fn orders(mut self, orders: usize) -> Self {
        self.orders = orders.max(1);
        self
    }

    /// What random inputs and orders are made from: another number gives others.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long a launch may take without an end of a block.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit.max(Duration::from_millis(100));
        self
    }

    /// How many compilers and workers run at once.
    pub fn jobs(mut self, jobs: usize) -> Self {
        self.jobs = jobs.max(1);
        self
    }

    /// Leaves failing inputs as they are, and does not tell them.
    pub fn without_shrinking(mut self) -> Self {
        self.shrinks = false;
        self
    }

    /// Runs on the machine's GPU, through its ROCm (`ROCM_PATH`), in place of the simulator.
    pub fn on_gpu(mut self) -> Self {
        self.on_gpu = true;
        self
    }

    /// Records outputs as `.npy` files in a folder.
    pub fn record(mut self, folder: impl Into<PathBuf>) -> Self {
        self.record = Some(folder.into());
        self
    }

    /// Compares outputs with those that were recorded in a folder.
    pub fn golden(mut self, folder: impl Into<PathBuf>) -> Self {
        self.golden = Some(folder.into());
        self
    }

    /// Adds a case.
    pub fn case(mut self, case: Case) -> Self {
        self.cases.push(case);
        self
    }

    /// Adds cases.
    pub fn cases(mut self, cases: impl IntoIterator<Item = Case>) -> Self {
        self.cases.extend(cases);
        self
    }

    /// Is told how far the check is.
    pub fn progress(mut self, progress: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.progress = Arc::new(progress);
        self
    }

    /// Compiles and runs. What is wrong with the unit or a case is in the report.
    ///
    /// # Errors
    /// [`CheckError`] for what keeps the check from being made.
    pub fn run(&self) -> Result<Report, CheckError> {
        let file = format!("{}.hip", self.unit.name);
        let source = translation_unit(&file, &self.unit.source)?;
        for arch in self.archs.iter().chain(&self.targets.archs()) {
            if candle_rocm::Arch::parse(arch).is_none() {
                return Err(CheckError::Arch(arch.clone()));
            }
        }
        let progress = &*self.progress;
        let targets = self.targets.archs();
        let compiled = compile::compile(
            &file,
            &source,
            &self.unit.source,
            &self.options,
            &targets,
            self.jobs,
            &|text| progress(text),
        );
        let golden = self.record.as_deref().map(Golden::record);
        let golden = golden.or_else(|| self.golden.as_deref().map(Golden::compare));
        let mut parts = Parts::new(self.unit, &self.cases, compiled);
        let (launches, mistakes) = launches(&self.cases, self.seed);
        parts.findings.extend(mistakes);
        let fits = |(case, ready): &(usize, prepare::Ready)| {
            let against = parts.against(&self.cases[*case], &ready.launch, self.unit);
            (*case, against)
        };
        let unfit: Vec<(usize, Finding)> = launches
            .0
            .iter()
            .filter_map(|launch| match fits(launch) {
                (case, Some(finding)) => Some((case, finding)),
                _ => None,
            })
            .collect();
        // A launch whose arguments are not the kernel's would read others' memory.
        let (mut kept, mut told) = (Vec::new(), std::collections::BTreeSet::new());
        for (case, ready) in launches.0 {
            if !unfit
                .iter()
                .any(|(other, finding)| *other == case && finding.kind != Kind::Lds)
            {
                kept.push((case, ready));
            }
        }
        for (case, finding) in unfit {
            if told.insert((case, finding.kind)) {
                parts.findings.push(finding);
            }
        }
        let launches = Launches(kept);
        let program = match launches.0.is_empty() {
            true => PathBuf::new(),
            false => session::program().map_err(CheckError::Worker)?,
        };
        let plan = Plan {
            program: &program,
            source: Source {
                name: &file,
                text: &source,
                options: &self.options,
            },
            setups: self.setups(),
            cases: &self.cases,
            limit: self.limit,
            jobs: self.jobs,
            seed: self.seed,
            golden: golden.as_ref(),
            progress: &|text| progress(text),
        };
        match plan.run(&launches) {
            Ok(runs) => {
                let found = findings(&plan, &launches, &runs.seen);
                for (mut finding, first) in found {
                    self.explain(&plan, &launches, &mut finding, &runs.seen[first]);
                    parts.findings.push(finding);
                }
                parts.runs = runs;
            }
            Err(Obstacle::Rejected(setup, log)) => {
                let arch = setup.arch.unwrap_or_else(|| "the GPU".to_string());
                let message = format!("the simulator's C++ compiler, or hiprtc, says:\n{log}");
                let mut finding = Finding::of_unit(Kind::Compile, "", Some(&arch), message);
                let place = finding::place_of(&log, &file, &self.unit.source);
                (finding.file, finding.line) = place.unzip();
                parts.findings.push(finding);
            }
            Err(Obstacle::Broken(why)) => return Err(CheckError::Worker(why)),
        }
        if let Some(errors) = golden
            .as_ref()
            .map(|golden| golden.errors())
            .filter(|errors| !errors.is_empty())
        {
            return Err(CheckError::Record(errors.join("; ")));
        }
        Ok(parts.report(&plan.setups, self.seed))
    }

    /// Arch after arch, each in all orders.
    fn setups(&self) -> Vec<Setup> {
        if self.on_gpu {
            // Twice: what differs between runs is a finding, too.
            let setup = Setup {
                arch: None,
                order: None,
            };
            return vec![setup.clone(), setup];
        }
        let mut random = Random::of(self.seed, &["orders"]);
        let shuffled: Vec<Option<u64>> = (1..self.orders).map(|_| Some(random.next())).collect();
        let orders: Vec<Option<u64>> = std::iter::once(None).chain(shuffled).collect();
        let mut setups = Vec::new();
        for arch in &self.archs {
            setups.extend(orders.iter().map(|&order| Setup {
                arch: Some(arch.clone()),
                order,
            }));
        }
        setups
    }

    /// Says of a finding whether it is known, and what the smallest input is.
    fn explain(&self, plan: &Plan, launches: &Launches, finding: &mut Finding, seen: &Seen) {
        let case = &self.cases[seen.case];
        let known = case.known.iter().find(|(kind, _)| *kind == finding.kind);
        if let Some((_, reason)) = known {
            finding.known = Some(reason.clone());
            return;
        }
        let ready = &launches.0[seen.launch].1;
        if !self.shrinks {
            return;
        }
        finding.input = Some(case_file::write_case(ready));
        if finding.kind == Kind::Golden {
            return;
        }
        (plan.progress)(&format!(
            "looking for a smaller input: {}, {}",
            case.name, finding.kind
        ));
        let setups = [Some(seen.setup), seen.other].into_iter().flatten();
        let setups = setups.map(|setup| &plan.setups[setup]).collect();
        let Some(smallest) = Shrinker::new(plan, case, finding.kind, setups).shrink(&ready.point)
        else {
            finding.message += "\nIt did not show again when the same launch was made alone.";
            return;
        };
        finding.sizes = smallest.point.clone();
        finding.message = smallest.fault.message;
        finding.difference = smallest.fault.difference;
        let data: Data = smallest.data;
        if let Ok(ready) = prepare::Ready::new(case, &smallest.point, &data, self.seed) {
            finding.input = Some(case_file::write_case(&ready));
        }
    }
}

/// Bytes of an argument as its kind in the model says; none for structures.
fn size_of_argument(kind: &ArgumentKind) -> Option<usize> {
    match kind {
        ArgumentKind::Pointer { .. } => Some(8),
        ArgumentKind::Scalar(name) => DType::named(name).map(DType::size),
        ArgumentKind::Structure(_) => None,
    }
}
