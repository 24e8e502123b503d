//! What GPUs are visible, what is missing and how to get it.
//!
//! Works on any machine: without ROCm the cards are named from what the kernel tells, with ROCm and no
//! GPU the report says so, and with several each one is listed.

mod links;
mod probe;

pub use links::{Link, Links, Trap};

use serde::Serialize;
use std::fmt;
use std::path::Path;

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// How far this machine is from computing on an AMD GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// At least one GPU can be used.
    Ready,
    /// A GPU answers, but a library or its kernels are missing.
    Incomplete,
    /// ROCm's runtime works, no GPU answers.
    NoGpu,
    /// ROCm's runtime was not found or cannot be used.
    NoRocm,
    /// ROCm's runtime failed in another way.
    Failed,
}

/// A file that was tried for a library, and why it was not used.
#[derive(Debug, Clone, Serialize)]
pub struct Tried {
    /// Path, or bare name where the dynamic loader searched.
    pub path: String,
    /// Why it was not used.
    pub reason: String,
}

/// One of ROCm's libraries.
#[derive(Debug, Clone, Serialize)]
pub struct Library {
    /// Name without version.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// Whether language models need it.
    pub required: bool,
    /// The file in use; `None` if there is none.
    pub path: Option<String>,
    /// Why there is none and how to get it.
    pub problem: Option<String>,
    /// What was tried before giving up.
    pub tried: Vec<Tried>,
}

/// A known issue of what is installed, for one GPU.
#[derive(Debug, Clone, Serialize)]
pub struct Warning {
    /// Its short name.
    pub id: &'static str,
    /// What is at fault: ROCm, Linux or firmware.
    pub component: String,
    /// What is installed of it.
    pub installed: String,
    /// The versions that have the issue.
    pub affected: String,
    /// What happens.
    pub effect: &'static str,
    /// What to do about it.
    pub advice: &'static str,
    /// Where this is known from.
    pub sources: &'static [&'static str],
    /// Whether kernels are launched one by one because of it.
    pub graphs_off: bool,
}

/// What is installed, as far as it can be found out.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Installed {
    /// Release of ROCm.
    pub rocm: Option<String>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Version of an amdgpu driver that was installed beside the kernel.
    pub amdgpu_driver: Option<String>,
}

/// What verification has found on a GPU, as far as it is remembered.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verified {
    /// How many kernels, instructions and library functions were verified.
    pub count: usize,
    /// What of them is not used as it is, why, and what takes its place.
    pub switched_off: Vec<String>,
}

/// A GPU that HIP shows.
#[derive(Debug, Clone, Serialize)]
pub struct Gpu {
    /// What `--device` calls it.
    pub device: String,
    /// Marketing name.
    pub name: String,
    /// Processor, for example `gfx1100`.
    pub arch: String,
    /// Threads of a wave.
    pub wave_size: u32,
    /// Compute units.
    pub compute_units: u32,
    /// Device memory in bytes.
    pub memory_bytes: usize,
    /// PCI address.
    pub pci_id: String,
    /// Whether it shares the host's memory.
    pub integrated: bool,
    /// Why rocBLAS cannot multiply for it, so that slower kernels of this program do; `None` if it can.
    pub without_rocblas: Option<String>,
    /// What keeps it from being used; `None` if nothing does.
    pub problem: Option<String>,
    /// What is known to be too old or faulty for it.
    pub warnings: Vec<Warning>,
    /// What was found of it when its kernels were verified.
    pub verified: Verified,
}

/// A card that the kernel knows and HIP does not show.
#[derive(Debug, Clone, Serialize)]
pub struct UnusableCard {
    /// Marketing name, or the PCI numbers.
    pub name: String,
    /// Processor, if the driver tells.
    pub arch: Option<String>,
    /// PCI address.
    pub pci_id: String,
    /// Why it cannot be used and what to do.
    pub reasons: Vec<String>,
    /// What is known to be too old or faulty for it.
    pub warnings: Vec<Warning>,
}

/// The whole picture.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceReport {
    /// In one word.
    pub status: Status,
    /// In one sentence, with what to do.
    pub message: String,
    /// Threads of the CPU.
    pub cpu_threads: usize,
    /// The operating system; AMD GPUs are used under Linux only.
    pub platform: &'static str,
    /// Versions of ROCm, the kernel and its driver.
    pub installed: Installed,
    /// GPUs that HIP shows, by ordinal.
    pub gpus: Vec<Gpu>,
    /// What joins the GPUs, where there are several.
    pub links: Option<Links>,
    /// Cards that the kernel knows and HIP does not show.
    pub unusable_cards: Vec<UnusableCard>,
    /// ROCm's libraries.
    pub libraries: Vec<Library>,
}

impl DeviceReport {
    /// Looks at the machine. Never fails: what cannot be found out is part of the report.
    pub fn gather() -> Self {
        let mut report = Self {
            // Both are found out below.
            status: Status::Failed,
            message: String::new(),
            cpu_threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            platform: std::env::consts::OS,
            installed: Installed::default(),
            gpus: Vec::new(),
            links: None,
            unusable_cards: Vec::new(),
            libraries: Vec::new(),
        };
        probe::fill(&mut report);
        report.libraries.sort_by_key(|library| !library.required);
        report
    }
}

impl Tried {
    fn is_absent(&self) -> bool {
        self.reason.to_lowercase().contains("no such file")
    }
}

impl DeviceReport {
    /// Where a library was looked for and was not, each place once.
    fn folders_without_library(&self) -> Vec<String> {
        let mut folders = Vec::new();
        let tried = self.libraries.iter().flat_map(|library| &library.tried);
        for tried in tried.filter(|t| t.is_absent()) {
            let folder = match Path::new(&tried.path).parent() {
                Some(folder) if folder != Path::new("") => folder.display().to_string(),
                _ => "the dynamic loader's path (LD_LIBRARY_PATH, ldconfig)".to_string(),
            };
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        folders
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: {}; {} ({})",
            self.component,
            self.installed,
            self.effect,
            self.advice,
            self.sources.join(", ")
        )
    }
}

impl fmt::Display for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = [
            ("ROCm", &self.rocm),
            ("Linux", &self.kernel),
            ("amdgpu driver", &self.amdgpu_driver),
        ];
        let known = known
            .iter()
            .filter_map(|(name, version)| Some(format!("{name} {}", version.as_ref()?)));
        f.write_str(&known.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Devices")?;
        writeln!(f, "  cpu     {} threads", self.cpu_threads)?;
        for gpu in &self.gpus {
            writeln!(
                f,
                "  {:7} {} ({}), {:.1} GiB{}, {} compute units, wave {}, PCI {}",
                gpu.device,
                gpu.name,
                gpu.arch,
                gpu.memory_bytes as f64 / GIB,
                if gpu.integrated {
                    " shared with the host"
                } else {
                    ""
                },
                gpu.compute_units,
                gpu.wave_size,
                gpu.pci_id,
            )?;
            if let Some(problem) = &gpu.problem {
                writeln!(f, "          cannot be used: {problem}")?;
            }
            if gpu.verified.count > 0 {
                writeln!(
                    f,
                    "          {} kernels and the like verified",
                    gpu.verified.count
                )?;
            }
            for text in &gpu.verified.switched_off {
                writeln!(f, "          switched off: {text}")?;
            }
            for warning in &gpu.warnings {
                writeln!(f, "          warning: {warning}")?;
            }
            if let Some(reason) = &gpu.without_rocblas {
                writeln!(
                    f,
                    "          products of floats by this program's own kernels: {reason}"
                )?;
            }
        }
        if let Some(links) = &self.links {
            write!(f, "\n{links}")?;
        }
        if !self.unusable_cards.is_empty() {
            writeln!(f, "\nCards that cannot be used")?;
        }
        for card in &self.unusable_cards {
            let arch = card
                .arch
                .as_ref()
                .map(|a| format!(" ({a})"))
                .unwrap_or_default();
            writeln!(f, "  {}{arch} at {}", card.name, card.pci_id)?;
            for reason in &card.reasons {
                writeln!(f, "    {reason}")?;
            }
            for warning in &card.warnings {
                writeln!(f, "    warning: {warning}")?;
            }
        }
        writeln!(f, "\nInstalled: {}", self.installed)?;
        if !self.libraries.is_empty() {
            writeln!(f, "\nROCm libraries")?;
        }
        for library in &self.libraries {
            let name = library.name;
            match (&library.path, &library.problem) {
                (Some(path), None) => writeln!(f, "  {name:11} {path}")?,
                (_, problem) => {
                    let need = if library.required {
                        "missing"
                    } else {
                        "missing, not needed"
                    };
                    let problem = problem.as_deref().unwrap_or_default();
                    writeln!(f, "  {name:11} {need} ({}): {problem}", library.purpose)?;
                    for tried in library.tried.iter().filter(|t| !t.is_absent()) {
                        writeln!(f, "    {}: {}", tried.path, tried.reason)?;
                    }
                }
            }
        }
        let folders = self.folders_without_library();
        if !folders.is_empty() {
            writeln!(f, "  looked in vain in {}", folders.join(", "))?;
        }
        write!(f, "\n{}", self.message)
    }
}
