//! `rocm-port check`

use super::scan::Reading;
use super::Outcome;
use rocm_port::check::{self, Case, Check, Report, Targets};
use rocm_port::model::PortedUnit;
use rocm_port::port::{self, Instance, UnitOptions};
use rocm_port::{parse, source};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `check`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What to check: a .cu file, a folder or a crate (NAME or NAME@VERSION) with CUDA, which is ported first; a ported
    /// unit (.json); or any other file, whose text is taken as it is: HIP with `extern "C"` kernels.
    #[arg(required_unless_present = "worker", value_name = "UNIT")]
    units: Vec<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// An instance of a kernel that is a template, such as "kernel<float, 128>"; may be given several times.
    #[arg(long, value_name = "INSTANCE")]
    instance: Vec<Instance>,
    /// Takes the text of a .cu file as it is, without porting it: for ROCm's place on an NVIDIA GPU.
    #[arg(long)]
    as_is: bool,
    /// A file of cases in TOML; may be given several times. A case runs in every unit that has its kernel.
    #[arg(long, alias = "case", value_name = "FILE")]
    cases: Vec<PathBuf>,
    /// Writes a first case file to the standard output, guessed from the kernels' parameters, and does nothing else.
    #[arg(long)]
    new_cases: bool,
    /// Archs to compile for: all, generations (one of each), none, or a list.
    #[arg(long, value_name = "ARCHS", default_value = "all")]
    compile: String,
    /// Archs to run on, simulated. The first two have waves of 32 and of 64.
    #[arg(long, value_name = "ARCHS", value_delimiter = ',', default_values = check::ARCHS)]
    arch: Vec<String>,
    /// Orders of threads that are tried: ascending, then shuffled.
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    seeds: usize,
    /// What random inputs and orders are made from.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    input_seed: u64,
    /// Seconds that a kernel may run without an end of a block.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    limit: f64,
    /// Compilers and workers at once; all cores if not given.
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<usize>,
    /// Options for the compilers, such as "-DNAME=1 -DOTHER=2".
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Where kernels run: sim, or rocm for this machine's GPU (ROCM_PATH says which ROCm).
    #[arg(long, value_enum, default_value = "sim")]
    on: Place,
    /// Records outputs as .npy files in a folder.
    #[arg(long, value_name = "DIR", conflicts_with = "golden")]
    record: Option<PathBuf>,
    /// Compares outputs with those that were recorded in a folder.
    #[arg(long, value_name = "DIR")]
    golden: Option<PathBuf>,
    /// Leaves failing inputs as they are, and does not look for smaller ones.
    #[arg(long)]
    no_shrink: bool,
    /// Spilled registers and scratch memory fail the check, too.
    #[arg(long)]
    strict: bool,
    /// Prints the reports as JSON: one document with an array.
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Prints the reports as Markdown.
    #[arg(long)]
    markdown: bool,
    /// Serves launches on the standard input.
    #[arg(long, hide = true)]
    worker: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Place {
    Sim,
    Rocm,
}

/// Bytes of a unit's file at most.
const MOST_BYTES: u64 = 256 << 20;

/// Runs the command.
pub(crate) fn run(options: Options) -> Outcome {
    if options.worker {
        return check::serve().map(|()| true);
    }
    let mut cases = Vec::new();
    for file in &options.cases {
        cases.extend(check::read_cases(file)?);
    }
    let mut units = Vec::new();
    for file in &options.units {
        units.extend(units_of(file, &options)?);
    }
    if options.new_cases {
        if let Some(unit) = units.iter().find(|unit| unit.kernels.is_empty()) {
            return Err(format!(
                "{}: its kernels are not known; a .cu file or a ported unit tells them",
                unit.name
            )
            .into());
        }
        units
            .iter()
            .for_each(|unit| print!("{}", check::new_cases(unit)));
        return Ok(true);
    }
    let mut left: Vec<bool> = cases.iter().map(|_| true).collect();
    let mut reports = Vec::new();
    for unit in &units {
        // A unit that does not list its kernels may have any.
        let has = |case: &Case| units.len() == 1 || has_kernel(unit, &case.kernel);
        let mut own = Vec::new();
        for (case, left) in cases.iter().zip(&mut left).filter(|(case, _)| has(case)) {
            *left = false;
            own.push(case.clone());
        }
        reports.push(check_unit(&options, unit, own)?);
    }
    if let Some((case, _)) = cases.iter().zip(&left).find(|(_, left)| **left) {
        return Err(format!(
            "no unit has the kernel {} of case {}",
            case.kernel, case.name
        )
        .into());
    }
    print(&options, &reports);
    let spills = reports
        .iter()
        .any(|report| report.findings.iter().any(|finding| finding.kind.is_note()));
    Ok(reports.iter().all(Report::is_clean) && !(options.strict && spills))
}

fn has_kernel(unit: &PortedUnit, name: &str) -> bool {
    match unit.kernels.is_empty() {
        true => unit.source.contains(name),
        false => unit.kernels.iter().any(|kernel| kernel.entry == name),
    }
}

fn check_unit(
    options: &Options,
    unit: &PortedUnit,
    cases: Vec<Case>,
) -> Result<Report, Box<dyn Error>> {
    let targets = match options.compile.as_str() {
        "all" => Targets::All,
        "generations" => Targets::Generations,
        "none" => Targets::None,
        list => Targets::Only(
            list.split(',')
                .map(|arch| arch.trim().to_string())
                .collect(),
        ),
    };
    let limit = Duration::try_from_secs_f64(options.limit);
    let mut check = Check::new(unit)
        .options(
            options
                .options
                .iter()
                .flat_map(|all| all.split_whitespace()),
        )
        .compile_for(targets)
        .archs(options.arch.iter().cloned())
        .orders(options.seeds)
        .seed(options.input_seed)
        .limit(limit.map_err(|_| format!("--limit {} is no time", options.limit))?)
        .progress(|text| eprintln!("{text}"))
        .cases(cases);
    if let Some(jobs) = options.jobs {
        check = check.jobs(jobs);
    }
    if options.no_shrink {
        check = check.without_shrinking();
    }
    if options.on == Place::Rocm {
        check = check.on_gpu();
    }
    if let Some(folder) = &options.record {
        check = check.record(folder);
    }
    if let Some(folder) = &options.golden {
        check = check.golden(folder);
    }
    Ok(check.run()?)
}

fn print(options: &Options, reports: &[Report]) {
    if options.json {
        let all: Vec<String> = reports.iter().map(Report::json).collect();
        println!("[{}]", all.join(","));
        return;
    }
    for report in reports {
        match options.markdown {
            true => println!("{}", report.markdown()),
            false => println!("{report}"),
        }
    }
}

/// The units that an argument means.
fn units_of(what: &Path, options: &Options) -> Result<Vec<PortedUnit>, Box<dyn Error>> {
    let is = |ending: &str| {
        what.extension()
            .is_some_and(|extension| extension == ending)
    };
    if what.is_file() && (options.as_is || !is("cu") && !is("json")) {
        let name = what
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        return Ok(vec![PortedUnit {
            name,
            source: read(what)?,
            kernels: Vec::new(),
        }]);
    }
    if is("json") {
        let text = read(what)?;
        let many: Result<Vec<PortedUnit>, _> = serde_json::from_str(&text);
        let units = many.or_else(|_| serde_json::from_str(&text).map(|one| vec![one]));
        return units
            .map_err(|why| format!("{}: it is no ported unit: {why}", what.display()).into());
    }
    port_units(what, options)
}

/// What `port` makes of CUDA files.
fn port_units(what: &Path, options: &Options) -> Result<Vec<PortedUnit>, Box<dyn Error>> {
    let what = what
        .to_str()
        .ok_or_else(|| format!("{}: its name is no text", what.display()))?;
    let sources = source::open(what)?;
    let project = parse::project(&sources, &options.reading.options())?;
    let mut units = Vec::new();
    for file in project
        .files
        .iter()
        .filter(|file| !file.kernels.is_empty() && file.path.ends_with(".cu"))
    {
        let has = |instance: &&Instance| {
            file.kernels.iter().any(|kernel| {
                kernel.name.rsplit("::").next() == instance.kernel.rsplit("::").next()
            })
        };
        let unit_options = UnitOptions {
            cuda_arch: Some(options.reading.options().cuda_arch),
            defines: options.reading.options().defines,
            includes: options.reading.options().includes,
            instances: options.instance.iter().filter(has).cloned().collect(),
            ..UnitOptions::default()
        };
        let ported = port::unit(&project, &file.path, &unit_options)?;
        ported
            .problems
            .iter()
            .for_each(|problem| eprintln!("rocm-port: {problem}"));
        units.push(ported.unit);
    }
    match units.is_empty() {
        true => Err(format!("{what} has no CUDA kernels").into()),
        false => Ok(units),
    }
}

/// The text of a file.
fn read(file: &Path) -> Result<String, Box<dyn Error>> {
    let error = |why: String| format!("{}: {why}", file.display());
    let length = std::fs::metadata(file)
        .map_err(|why| error(why.to_string()))?
        .len();
    if length > MOST_BYTES {
        return Err(error(format!("it has {length} bytes, more than {MOST_BYTES}")).into());
    }
    std::fs::read_to_string(file).map_err(|why| error(why.to_string()).into())
}
