//! This product's kernels: whether each compiles for the GPU at hand and loads, how long that takes, and what the
//! compiler made of it.

use crate::report::Measurement;
use crate::{Check, Failure, Options, Section};
use candle_rocm::config::{Config, Verify};
use candle_rocm::precompile::{missing, stored, CompileJob};
use candle_rocm::{CodeObject, DeclaredKernel, Device, Only};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use worker::kernels::pool::compile;
use worker::kernels::CompileArgs;

/// See the [module](self).
pub struct Kernels;

/// Characters of a compiler's messages that a finding quotes.
const QUOTED: usize = 400;
/// Kernels that a finding names.
const NAMED: usize = 5;

impl Section for Kernels {
    fn name(&self) -> &'static str {
        "kernels"
    }

    fn about(&self) -> &'static str {
        "every family of kernels compiled for this GPU and loaded"
    }

    fn limit(&self, options: &Options) -> Duration {
        options.pick(
            Duration::from_secs(1800),
            Duration::from_secs(600),
            Duration::from_secs(600),
        )
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        // Whether results are right is the matter of other sections.
        let config = Config {
            verify: Verify::Off,
            ..Config::from_env()?
        };
        let device = Device::with_config(check.ordinal(), config)?;
        let arch = device.properties().full_arch.clone();
        let modules = modules(&device);
        let all: Vec<CodeObject> = modules.keys().cloned().collect();
        let jobs = missing(&arch, &all)?;
        let absent = compile_some(check, jobs)?;
        let there: Vec<_> = modules
            .into_iter()
            .filter(|(object, _)| !absent.contains(object))
            .collect();
        load(check, &device, &there);
        look_at(check, &arch, &there);
        Ok(())
    }
}

/// The kernels that this GPU has, by what is compiled at once.
fn modules(device: &Device) -> BTreeMap<CodeObject, Vec<DeclaredKernel>> {
    let properties = device.properties();
    let mut modules: BTreeMap<_, Vec<DeclaredKernel>> = BTreeMap::new();
    for kernel in candle_rocm::ops::kernels() {
        let has = match kernel.only {
            None => true,
            Some(Only::Wave32) => properties.wave_size == 32,
            Some(Only::Matrix) => properties.arch.generation().matrix().is_some(),
            Some(Only::Float8) => properties.arch.has_float8(),
            Some(Only::Mx) => properties.arch.has_mx(),
        };
        if has {
            modules
                .entry(CodeObject::of(&kernel))
                .or_default()
                .push(kernel);
        }
    }
    modules
}

/// Compiles what is missing, side by side, or as much of it as there is time for. Returns what is not there then.
fn compile_some(check: &Check, mut jobs: Vec<CompileJob>) -> Result<BTreeSet<CodeObject>, Failure> {
    let missing = jobs.len();
    let most = check.options().pick(usize::MAX, 32, 2);
    let left = jobs.split_off(most.min(missing));
    let mut absent: BTreeSet<CodeObject> = left.into_iter().map(|job| job.object).collect();
    if !absent.is_empty() {
        let text = format!(
            "{} of {missing} files of kernels were not compiled, to be quick",
            absent.len()
        );
        check.info("left", text, "");
    }
    let total = jobs.len();
    if total == 0 {
        return Ok(absent);
    }
    let processes = CompileArgs::default().processes(total);
    check.progress(format!("compiling {total} files in {processes} processes"));
    let start = Instant::now();
    let mut failed = 0;
    let mut done = 0;
    compile(jobs, processes, &mut |job, outcome| {
        done += 1;
        check.progress(format!("{done} of {total} files of kernels are compiled"));
        match outcome {
            Ok(time) => {
                let name = format!("compiling {}", job.object);
                check.measure(Measurement::new(name, time.as_secs_f64(), "s").detail());
            }
            Err(reason) => {
                failed += 1;
                absent.insert(job.object.clone());
                let text: String = reason.chars().take(QUOTED).collect();
                check.error(
                    "compile",
                    format!("{}: {text}", job.object),
                    "what needs these kernels fails or takes a slower way; please send the report, with the version of ROCm in it",
                );
            }
        }
    })?;
    let seconds = start.elapsed().as_secs_f64();
    check.measure(Measurement::new(
        format!("{} files compiled by {processes} processes", total - failed),
        seconds,
        "s",
    ));
    Ok(absent)
}

/// Loads every kernel of what is there.
fn load(check: &Check, device: &Device, modules: &[(CodeObject, Vec<DeclaredKernel>)]) {
    let start = Instant::now();
    let mut loaded = 0;
    for (object, kernels) in modules {
        check.progress(format!("loading {object}"));
        let refused = kernels
            .iter()
            .find_map(|kernel| device.kernel(kernel).err());
        match refused {
            None => loaded += kernels.len(),
            Some(error) => {
                let text: String = error.to_string().chars().take(QUOTED).collect();
                check.error(
                    "load",
                    format!("{object}: {text}"),
                    "delete the cache of kernels (CANDLE_ROCM_CACHE_DIR, else ~/.cache/candle-rocm) and run this again; if it stays so, please send the report",
                );
            }
        }
    }
    let count: usize = modules.iter().map(|(_, kernels)| kernels.len()).sum();
    check.note(format!(
        "{loaded} of {count} kernels in {} files load",
        modules.len()
    ));
    check.measure(Measurement::new(
        "loading them",
        start.elapsed().as_secs_f64(),
        "s",
    ));
}

/// Tells what the compiler made of them, where the objects say so.
fn look_at(check: &Check, arch: &str, modules: &[(CodeObject, Vec<DeclaredKernel>)]) {
    let mut count = 0;
    let (mut registers, mut lds) = (0, 0);
    let mut in_memory = Vec::new();
    for (object, _) in modules {
        let entries = stored(arch, object).and_then(|bytes| code_object::read(&bytes).ok());
        for kernel in entries
            .into_iter()
            .flatten()
            .flat_map(|entry| entry.object.kernels)
        {
            count += 1;
            registers = registers.max(kernel.vgprs);
            lds = lds.max(kernel.lds_bytes);
            if kernel.scratch_bytes > 0 {
                in_memory.push(format!("{} ({} bytes)", kernel.name, kernel.scratch_bytes));
            }
        }
    }
    // The simulator's objects are no AMD GPU's.
    if count == 0 {
        return;
    }
    check.note(format!(
        "at most {registers} registers and {lds} bytes of LDS"
    ));
    if !in_memory.is_empty() {
        let named = in_memory[..in_memory.len().min(NAMED)].join(", ");
        check.info(
            "scratch",
            format!(
                "{} of {count} kernels keep values in memory: {named}",
                in_memory.len()
            ),
            "they are slower so than they were meant to be; `code-object FILE` shows more",
        );
    }
}
