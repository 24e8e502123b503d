//! Asks ROCm and the kernel.

use super::{
    DeviceReport, Gpu, Installed, Library, Links, Status, Tried, UnusableCard, Verified, Warning,
};
use candle_rocm::known_issues::{known_issues, Consequence, KnownIssue, Versions};
use candle_rocm::sys::hip::Hip;
use candle_rocm::sys::hiprtc::Hiprtc;
use candle_rocm::sys::loader::Loaded;
use candle_rocm::sys::miopen::MiOpen;
use candle_rocm::sys::rocblas::RocBlas;
use candle_rocm::sys::LoadError;
use candle_rocm::topology::{KernelGpu, Topology};
use candle_rocm::{blas, Device};

/// How to get the whole of ROCm, in one sentence.
const INSTALL: &str =
    "install ROCm 6.2 or newer (Linux only; https://rocm.docs.amd.com), or set ROCM_PATH to where it is";

pub(super) fn fill(report: &mut DeviceReport) {
    report.libraries = vec![
        library("libamdhip64", "the runtime", true, Hip::get()),
        library(
            "libhiprtc",
            "compiles kernels on first use",
            true,
            Hiprtc::get(),
        ),
        library("librocblas", "matrix products", false, RocBlas::get()),
        library("libMIOpen", "convolutions", false, MiOpen::get()),
    ];
    let versions = Versions::read();
    report.installed = Installed {
        rocm: versions.rocm.map(|release| release.to_string()),
        kernel: versions.kernel_release,
        amdgpu_driver: versions.amdgpu_driver,
    };
    let topology = Topology::read();
    let count = Device::count();
    if let Ok(count) = count {
        report.gpus = (0..count).map(gpu).collect();
        report.links = Links::of(&report.gpus);
    }
    let shown = |card: &&KernelGpu| !report.gpus.iter().any(|gpu| gpu.pci_id == card.pci_id);
    report.unusable_cards = topology
        .gpus
        .iter()
        .filter(shown)
        .map(|card| unusable(card, report))
        .collect();
    (report.status, report.message) = verdict(report, count.err(), &topology);
}

fn verdict(
    report: &DeviceReport,
    error: Option<candle_rocm::Error>,
    topology: &Topology,
) -> (Status, String) {
    let missing: Vec<&str> = report
        .libraries
        .iter()
        .filter(|library| library.required && library.path.is_none())
        .map(|library| library.name)
        .collect();
    match error {
        None if !missing.is_empty() => (
            Status::Incomplete,
            format!(
                "ROCm is incomplete: {} cannot be used; {INSTALL}",
                missing.join(", ")
            ),
        ),
        None if report.gpus.iter().all(|gpu| gpu.problem.is_some()) => (
            Status::Incomplete,
            "ROCm shows GPUs, but none of them can be used; the reasons are listed above"
                .to_string(),
        ),
        None => {
            let usable = report
                .gpus
                .iter()
                .filter(|gpu| gpu.problem.is_none())
                .count();
            let plural = if usable == 1 { "" } else { "s" };
            (Status::Ready, format!("{usable} AMD GPU{plural} ready"))
        }
        Some(candle_rocm::Error::Load(_)) => {
            let cards = match topology.gpus.len() {
                0 => String::new(),
                n => format!(" ({n} AMD GPU(s) in this machine wait for it)"),
            };
            (Status::NoRocm, format!("ROCm not found{cards}: {INSTALL}"))
        }
        Some(candle_rocm::Error::NoDevice { reason }) => {
            (Status::NoGpu, format!("ROCm found, no GPU: {reason}"))
        }
        Some(other) => (Status::Failed, format!("ROCm found, but it fails: {other}")),
    }
}

fn library<T>(
    name: &'static str,
    purpose: &'static str,
    required: bool,
    loaded: Result<&'static Loaded<T>, LoadError>,
) -> Library {
    let (path, problem, tried) = match loaded {
        Ok(loaded) => (Some(loaded.path.display().to_string()), None, Vec::new()),
        Err(error) => {
            let tried = error.tried().iter().map(|attempt| Tried {
                path: attempt.path.display().to_string(),
                reason: attempt.reason.clone(),
            });
            // Its first line says what to do; the others repeat what was tried.
            let text = error.to_string();
            let problem = text.lines().next().unwrap_or_default();
            let problem = problem.trim_end_matches(" Tried:").to_string();
            (None, Some(problem), tried.collect())
        }
    };
    Library {
        name,
        purpose,
        required,
        path,
        problem,
        tried,
    }
}

fn gpu(ordinal: usize) -> Gpu {
    let device = format!("rocm:{ordinal}");
    match Device::new(ordinal) {
        Ok(opened) => {
            let properties = opened.properties();
            let problem = (!properties.arch.is_supported())
                .then(|| format!("its processor {} is not supported", properties.arch));
            Gpu {
                device,
                name: properties.name.clone(),
                arch: properties.arch.to_string(),
                wave_size: properties.wave_size,
                compute_units: properties.compute_units,
                memory_bytes: properties.total_memory,
                pci_id: properties.pci_id.clone(),
                integrated: properties.integrated,
                without_rocblas: blas::refusal(&opened).map(str::to_string),
                problem,
                warnings: warnings(properties.arch.as_str(), &properties.pci_id),
                verified: verified(&opened),
            }
        }
        Err(error) => Gpu {
            device,
            name: "unknown AMD GPU".to_string(),
            arch: "unknown".to_string(),
            wave_size: 0,
            compute_units: 0,
            memory_bytes: 0,
            pci_id: "unknown".to_string(),
            integrated: false,
            without_rocblas: None,
            problem: Some(error.to_string()),
            warnings: Vec::new(),
            verified: Verified::default(),
        },
    }
}

/// What is remembered of the GPU's kernels; nothing is computed for it.
fn verified(device: &Device) -> Verified {
    let verification = device.verification();
    let switched_off = verification.switched_off.iter();
    Verified {
        count: verification.verified.len(),
        switched_off: switched_off.map(ToString::to_string).collect(),
    }
}

/// What is known of the versions installed, for the GPU of an arch at a PCI address.
fn warnings(arch: &str, pci_id: &str) -> Vec<Warning> {
    let versions = Versions::read_of(pci_id);
    let warning = |issue: &'static KnownIssue| {
        let component = issue.affected.component();
        Warning {
            id: issue.id,
            component: component.to_string(),
            installed: versions.installed(component),
            affected: issue.affected.to_string(),
            effect: issue.effect,
            advice: issue.advice,
            sources: issue.sources,
            graphs_off: issue.consequence == Consequence::NoGraphs,
        }
    };
    let issues = known_issues(arch, &versions);
    issues.into_iter().map(warning).collect()
}

fn unusable(card: &KernelGpu, report: &DeviceReport) -> UnusableCard {
    let mut reasons: Vec<String> = card.obstacles.iter().map(ToString::to_string).collect();
    let runtime = report
        .libraries
        .iter()
        .find(|library| library.name == "libamdhip64");
    if runtime.is_some_and(|library| library.path.is_none()) {
        reasons.push(format!("ROCm is missing: {INSTALL}"));
    } else if reasons.is_empty() {
        reasons.push(
            "the driver offers it, but ROCm does not show it: it may be hidden by HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES, or be unknown to this release (compare with rocminfo)"
                .to_string(),
        );
    }
    UnusableCard {
        name: card.display_name(),
        arch: card.arch.clone(),
        pci_id: card.pci_id.clone(),
        reasons,
        warnings: card
            .arch
            .as_deref()
            .map_or_else(Vec::new, |arch| warnings(arch, &card.pci_id)),
    }
}
