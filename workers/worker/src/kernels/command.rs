//! The command `compile-kernels`.

use super::ahead::{CompileArgs, Compiled};
use super::pool::serve_jobs;
use crate::cli::output::print_line;
use crate::device::DeviceArgs;
use crate::serve::Progress;
use crate::{Error, Result};
use candle_core::Device;
use candle_rocm::precompile::missing;
use candle_rocm::{Arch, CodeObject};
use clap::Args;

/// Arguments of `compile-kernels`.
#[derive(Debug, Args)]
pub struct CompileKernelsArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// Compile for GPUs of this kind instead, which need not be there: gfx1100, or gfx942:sramecc+:xnack- where HIP
    /// names features, as `devices --json` shows it.
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,

    /// Compile everything instead of what models usually need.
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    compile: CompileArgs,

    /// Compile what comes on standard input: how this program has its kernels compiled side by side.
    #[arg(long, hide = true)]
    jobs_from_stdin: bool,
}

impl CompileKernelsArgs {
    /// Compiles `usual` or everything into the cache.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no arch, [`Error::Device`] without a GPU or compiler, [`Error::Runtime`] if some
    /// kernels could not be compiled.
    pub fn run(self, usual: fn() -> Vec<CodeObject>) -> Result<()> {
        if self.jobs_from_stdin {
            return serve_jobs();
        }
        let arch = match self.arch {
            Some(arch) if Arch::parse(&arch).is_some() => arch,
            Some(arch) => {
                return Err(Error::Usage(format!(
                    "--arch {arch} is no kind of AMD GPU; they are called gfx1100 or gfx90a:sramecc+:xnack-"
                )))
            }
            None => match self.device.select()?.device {
                Device::Rocm(device) => device.device().properties().full_arch.clone(),
                _ => {
                    return Err(Error::Usage(
                        "kernels are compiled for a GPU; give --device rocm:N, or --arch where there is none"
                            .to_string(),
                    ))
                }
            },
        };
        let wanted = match self.all {
            true => CodeObject::all(),
            false => usual(),
        };
        let jobs = missing(&arch, &wanted).map_err(|e| Error::Device(e.to_string()))?;
        if jobs.is_empty() {
            return print_line(&format!("all kernels for {arch} are there"));
        }
        let compiled = self.compile.run(jobs, &Progress::default())?;
        let Compiled {
            objects,
            failed,
            processes,
            time,
        } = compiled;
        if let Some((object, _)) = failed.first() {
            return Err(Error::Runtime(format!(
                "{} files of kernels for {arch} were not compiled, the first being {object}; see above why",
                failed.len()
            )));
        }
        print_line(&format!(
            "{objects} files of kernels compiled for {arch} in {:.1} s by {processes} processes",
            time.as_secs_f64()
        ))
    }
}
