//! Releases of ROCm, kernels and firmware that are known to be too old or faulty for an arch, with public sources.
//!
//! [`KNOWN_ISSUES`] is the one table. What is installed is read by [`Versions::read`]; [`known_issues`] compares.

mod table;
mod versions;

pub use table::KNOWN_ISSUES;
pub use versions::{Release, Runtime, Version, Versions};

use crate::Device;
use std::fmt;
use std::sync::OnceLock;

/// What is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// ROCm's runtime.
    Rocm,
    /// The Linux kernel with its amdgpu driver.
    Kernel,
    /// The firmware of the GPU's scheduler (MES).
    Firmware,
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Component::Rocm => "ROCm",
            Component::Kernel => "Linux",
            Component::Firmware => "MES firmware",
        })
    }
}

/// The versions that have an issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affected {
    /// Releases of ROCm from the first to before the second.
    Rocm(Version, Version),
    /// Kernels from the first to before the second.
    Kernel(Version, Version),
    /// One version of the MES firmware.
    Firmware(u32),
}

impl Affected {
    /// What is at fault.
    pub const fn component(self) -> Component {
        match self {
            Affected::Rocm(..) => Component::Rocm,
            Affected::Kernel(..) => Component::Kernel,
            Affected::Firmware(_) => Component::Firmware,
        }
    }
}

impl fmt::Display for Affected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let component = self.component();
        match self {
            Affected::Rocm(from, before) | Affected::Kernel(from, before) => {
                match (*from == Version::OLDEST, *before == Version::NEWEST) {
                    (true, _) => write!(f, "{component} before {before}"),
                    (false, true) => write!(f, "{component} {from} and later"),
                    (false, false) => write!(f, "{component} from {from} to before {before}"),
                }
            }
            Affected::Firmware(version) => write!(f, "{component} {version:#x}"),
        }
    }
}

/// What this product does where an issue is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// It says so.
    Warn,
    /// It says so and launches kernels one by one instead of in graphs.
    NoGraphs,
}

/// What makes an issue harmless in spite of its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    /// The driver does not save waves (`amdgpu.cwsr_enable=0`), or it tells how much room their registers take, as it
    /// does since it was mended, also where a distribution mended an older kernel.
    ContextSave,
}

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownIssue {
    /// A short name.
    pub id: &'static str,
    /// How the names of the processors concerned begin.
    pub archs: &'static [&'static str],
    /// The versions that have it.
    pub affected: Affected,
    /// What makes it harmless.
    pub cure: Option<Cure>,
    /// What happens.
    pub effect: &'static str,
    /// What to do about it.
    pub advice: &'static str,
    /// Where this is known from.
    pub sources: &'static [&'static str],
    /// What this product does about it.
    pub consequence: Consequence,
}

impl KnownIssue {
    /// Whether a GPU of the arch (`gfx942`, with features or without) has it with these versions. A version that is not
    /// known has no issues; a release of which only the beginning is known has those that it can have.
    pub fn concerns(&self, arch: &str, versions: &Versions) -> bool {
        self.archs.iter().any(|start| arch.starts_with(start))
            && self.is_installed(versions)
            && !self.cure.is_some_and(|cure| versions.have(cure))
    }

    fn is_installed(&self, versions: &Versions) -> bool {
        match self.affected {
            Affected::Rocm(from, before) => versions
                .rocm
                .is_some_and(|rocm| rocm.oldest < before && rocm.newest >= from),
            Affected::Kernel(from, before) => versions
                .kernel
                .is_some_and(|kernel| (from..before).contains(&kernel)),
            Affected::Firmware(version) => versions.mes_firmware == Some(version),
        }
    }

    /// One sentence or two with what is installed, what it does, what to do, and the first source.
    pub fn describe(&self, versions: &Versions) -> String {
        let installed = versions.installed(self.affected.component());
        let source = self.sources.first().copied().unwrap_or_default();
        format!(
            "{} {installed}: {}; {} ({source})",
            self.affected.component(),
            self.effect,
            self.advice
        )
    }
}

/// The issues that a GPU of the arch has with these versions.
pub fn known_issues(arch: &str, versions: &Versions) -> Vec<&'static KnownIssue> {
    let concerned = |issue: &&KnownIssue| issue.concerns(arch, versions);
    KNOWN_ISSUES.iter().filter(concerned).collect()
}

/// Why graphs are not to be used on a device; none if nothing is known against them. Versions are read once.
pub fn forbids_graphs(device: &Device) -> Option<&'static KnownIssue> {
    static VERSIONS: OnceLock<Versions> = OnceLock::new();
    let versions = VERSIONS.get_or_init(Versions::read);
    let issues = known_issues(device.properties().arch.as_str(), versions);
    issues
        .into_iter()
        .find(|issue| issue.consequence == Consequence::NoGraphs)
}
