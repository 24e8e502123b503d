//! This product's kernels: whether each compiles for the GPU at hand and loads, and how long that takes.

use crate::report::Measurement;
use crate::{Check, Failure, Options, Section};
use candle_rocm::{DeclaredKernel, Device, Family, Only};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct Kernels;

/// Characters of a compiler's messages that a finding quotes.
const QUOTED: usize = 400;

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
        let device = check.device()?;
        let modules = modules(&device);
        // No module is begun after this.
        let budget = check.options().pick(
            Duration::MAX,
            Duration::from_secs(30),
            Duration::from_secs(20),
        );
        let total = modules.len();
        let (mut made, mut kernels, mut refused) = (0, 0, 0);
        for ((family, part), declared) in modules {
            if check.elapsed() > budget {
                break;
            }
            let name = match &part {
                Some(part) => format!("{}, {part}", family.file_name()),
                None => family.file_name().to_string(),
            };
            check.progress(format!("{name} ({} of {total})", made + 1));
            let start = Instant::now();
            let failed = load(&device, &declared);
            let seconds = start.elapsed().as_secs_f64();
            check.measure(Measurement::new(name.clone(), seconds, "s").detail());
            made += 1;
            kernels += declared.len();
            if let Some(error) = failed {
                refused += 1;
                let text: String = error.chars().take(QUOTED).collect();
                check.error(
                    "compile",
                    format!("{name}: {text}"),
                    "what needs this kernel fails or takes a slower way; please send the report, with the version of ROCm in it",
                );
            }
        }
        let stats = device.code_objects();
        check.note(format!(
            "{} modules with {kernels} kernels: {} compiled now, {} from the cache, {refused} refused",
            made, stats.compiled, stats.hits
        ));
        if made < total {
            let text = format!(
                "{} of {total} modules were not tried, to be quick",
                total - made
            );
            check.info("left", text, "");
        }
        if stats.not_stored > 0 {
            check.warning(
                "cache",
                format!("{} compiled kernels could not be kept", stats.not_stored),
                "make the cache's folder writable, or name another by CANDLE_ROCM_CACHE_DIR: without it every start compiles anew",
            );
        }
        check.measure(Measurement::new(
            "all modules",
            check.elapsed().as_secs_f64(),
            "s",
        ));
        Ok(())
    }
}

/// The kernels that this GPU has, by what is compiled at once.
fn modules(device: &Device) -> BTreeMap<(Family, Option<String>), Vec<DeclaredKernel>> {
    let properties = device.properties();
    let mut modules: BTreeMap<_, Vec<DeclaredKernel>> = BTreeMap::new();
    for kernel in candle_rocm::ops::kernels() {
        let has = match kernel.only {
            None => true,
            Some(Only::Wave32) => properties.wave_size == 32,
            Some(Only::Matrix) => properties.arch.generation().matrix().is_some(),
        };
        if has {
            let module = (kernel.family, kernel.part.clone());
            modules.entry(module).or_default().push(kernel);
        }
    }
    modules
}

/// Loads all kernels of a module, and tells why the first that fails does.
fn load(device: &Device, kernels: &[DeclaredKernel]) -> Option<String> {
    (kernels.iter()).find_map(|kernel| device.kernel(kernel).err().map(|error| error.to_string()))
}
