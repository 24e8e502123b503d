//! Compiles the instances of Composable Kernel's attention, with the feature `ck`.

use crate::instances::CkInstance;
use crate::variables::{CK_ARCHS, CK_DIR, CK_FLAGS};
use crate::{clang, Error};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A code object: kernel, arch, file.
pub type Object = (String, String, PathBuf);

/// The variable of ROCm's own tools that says where it is.
const ROCM_PATH: &str = "ROCM_PATH";

/// The archs that `CANDLE_ROCM_CK_ARCHS` names, else those of `CANDLE_ROCM_ARCHS` that have instances.
fn archs(embedded: &BTreeSet<&str>) -> Result<Vec<String>, Error> {
    let Some(named) = CK_ARCHS.text() else {
        let suitable = embedded.iter().filter(|arch| CkInstance::exist_for(arch));
        return Ok(suitable.map(|arch| arch.to_string()).collect());
    };
    let archs: BTreeSet<String> = named
        .split(',')
        .map(|arch| arch.trim().to_string())
        .filter(|arch| !arch.is_empty())
        .collect();
    match archs.iter().find(|arch| !CkInstance::exist_for(arch)) {
        Some(arch) => Err(format!("CANDLE_ROCM_CK_ARCHS names {arch}, for which Composable Kernel has no attention; gfx90a, gfx942, gfx950 and gfx12 have it").into()),
        None => Ok(archs.into_iter().collect()),
    }
}

/// The folder of headers below `CK_DIR`: a ROCm installation (`CK_DIR=/opt/rocm`), Composable Kernel's sources, or an
/// unpacked wheel of amd-aiter.
fn headers() -> Result<PathBuf, Error> {
    let Some(root) = CK_DIR.text() else {
        return Err("the feature `ck` compiles Composable Kernel's attention: set CK_DIR to a ROCm installation (/opt/rocm) or to Composable Kernel's sources (scripts/ck fetches them), or leave the feature off".into());
    };
    let below = ["include", "aiter_meta/3rdparty/composable_kernel/include"];
    let found = below
        .map(|folder| Path::new(&root).join(folder))
        .into_iter()
        .find(|folder| folder.join("ck_tile/ops/fmha.hpp").is_file());
    found.ok_or_else(|| format!("CK_DIR={root} has no include/ck_tile/ops/fmha.hpp").into())
}

/// Every instance for every arch, on `threads` threads at once.
pub fn compile(
    manifest: &Path,
    out: &Path,
    embedded: &BTreeSet<&str>,
) -> Result<Vec<Object>, Error> {
    for name in [CK_DIR.name, CK_ARCHS.name, CK_FLAGS.name, ROCM_PATH] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=ck");
    if std::env::var_os("CARGO_FEATURE_CK").is_none() {
        return Ok(Vec::new());
    }
    let archs = archs(embedded)?;
    if archs.is_empty() {
        return Err("the feature `ck` compiles at build time: set CANDLE_ROCM_CK_ARCHS to the archs that it is for, such as gfx942,gfx1201".into());
    }
    let headers = headers()?;
    println!(
        "cargo::rerun-if-changed={}",
        headers.join("ck_tile/ops/fmha").display()
    );
    // What it shares with the host, as `#include "shared/ck.h"`.
    std::fs::create_dir_all(out.join("shared"))?;
    std::fs::write(out.join("shared/ck.h"), crate::shared::ck::header())?;
    let clang = clang::Clang::find()?;
    let source = manifest.join("ck/fmha.hip");
    let jobs: Vec<(CkInstance, &str)> = archs
        .iter()
        .flat_map(|arch| CkInstance::all().map(move |instance| (instance, arch.as_str())))
        .collect();
    crate::on_all_cores(&jobs, |(instance, arch)| {
        let name = instance.kernel_name();
        let object = out.join(format!("{name}.{arch}.co").replace(':', "_"));
        run(
            command(&clang, &headers, *instance, arch)
                .arg("-I")
                .arg(out)
                .arg(&source)
                .arg("-o")
                .arg(&object),
            &name,
            arch,
        )?;
        crate::write_compressed(&object, &std::fs::read(&object)?)?;
        Ok((name, arch.to_string(), object))
    })
}

fn command(clang: &clang::Clang, headers: &Path, instance: CkInstance, arch: &str) -> Command {
    let mut command = Command::new(clang.program());
    command
        .args([
            "-x",
            "hip",
            "--cuda-device-only",
            "--no-gpu-bundle-output",
            "-fuse-ld=lld",
        ])
        .args([
            "-O3",
            "-std=c++17",
            crate::target::object_version(arch),
            "-fgpu-flush-denormals-to-zero",
            "-w",
        ])
        .arg(format!("--offload-arch={arch}"))
        .args(["-D__HIP_PLATFORM_AMD__=1", "-DCK_TILE_FMHA_FWD_FAST_EXP2=1"])
        .arg(format!("-DCK_KERNEL={}", instance.kernel_name()))
        .arg(format!("-DCK_HEAD={}", instance.head))
        .arg(format!(
            "-DCK_ELEMENT={}",
            if instance.bf16 { "bf16_t" } else { "fp16_t" }
        ))
        .arg(format!("-DCK_CAUSAL={}", u32::from(instance.causal)))
        .arg(format!("-DCK_VARLEN={}", u32::from(instance.varlen)))
        .arg("-I")
        .arg(headers);
    if let Some(rocm) = std::env::var(ROCM_PATH)
        .ok()
        .filter(|root| !root.is_empty())
    {
        command.arg(format!("--rocm-path={rocm}"));
    }
    if let Some(flags) = CK_FLAGS.text() {
        command.args(flags.split_whitespace());
    }
    command
}

fn run(command: &mut Command, name: &str, arch: &str) -> Result<(), Error> {
    let output = command.output().map_err(|error| {
        format!(
            "cannot run {}: {error}",
            command.get_program().to_string_lossy()
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{name} does not compile for {arch}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    )
    .into())
}
