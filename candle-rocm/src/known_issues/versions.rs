//! What is installed: ROCm, kernel, driver and firmware.

use super::{Component, Cure};
use crate::sys::hip::{self, Hip};
use crate::sys::loader::mapped_file;
use crate::sys::provided;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A version of three numbers; missing ones are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second.
    pub minor: u32,
    /// The third.
    pub patch: u32,
}

impl Version {
    /// Before all others.
    pub const OLDEST: Self = Self {
        major: 0,
        minor: 0,
        patch: 0,
    };
    /// After all others.
    pub const NEWEST: Self = Self {
        major: u32::MAX,
        minor: u32::MAX,
        patch: u32::MAX,
    };

    /// The numbers at the beginning of a text such as `6.18.4-arch1-1`; none if it does not begin with two.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = |part: &str| part.bytes().take_while(u8::is_ascii_digit).count();
        let mut parts = text.trim().split('.');
        let mut number = || {
            let part = parts.next()?;
            part[..digits(part)].parse().ok()
        };
        Some(Version {
            major: number()?,
            minor: number()?,
            patch: number().unwrap_or(0),
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// An installed release of ROCm. Distributions do not tell the last number: then it is one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// What it is at least.
    pub oldest: Version,
    /// What it is at most.
    pub newest: Version,
}

impl Release {
    /// A release of which all numbers are known.
    pub const fn exactly(version: Version) -> Self {
        Release {
            oldest: version,
            newest: version,
        }
    }

    /// A release whose last number is not known.
    pub fn of_series(major: u32, minor: u32) -> Self {
        let version = |patch| Version {
            major,
            minor,
            patch,
        };
        Release {
            oldest: version(0),
            newest: version(u32::MAX),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version { major, minor, .. } = self.oldest;
        match self.oldest == self.newest {
            true => self.oldest.fmt(f),
            false => write!(f, "{major}.{minor} (patch level unknown)"),
        }
    }
}

/// What is installed, as far as it can be found out. What cannot is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The release of ROCm whose runtime is loaded.
    pub rocm: Option<Release>,
    /// The running kernel.
    pub kernel: Option<Version>,
    /// The same as the kernel tells it, for example `6.14.0-1018-oem`.
    pub kernel_release: Option<String>,
    /// The version of an amdgpu driver that was installed beside the kernel; the kernel's own has none.
    pub amdgpu_driver: Option<String>,
    /// The version of the MES firmware of one GPU, which GPUs since RDNA3 have.
    pub mes_firmware: Option<u32>,
    /// Whether the driver saves the registers of interrupted waves (`amdgpu.cwsr_enable`).
    pub saves_context: Option<bool>,
    /// Whether the driver tells how much room that takes: it has been mended then.
    pub tells_context_size: bool,
}

/// What the runtime says of itself.
#[derive(Clone, Debug, Default)]
pub struct Runtime {
    /// What `hipRuntimeGetVersion` gives: 10,000,000 times the first number, 100,000 times the second, and a third that
    /// counts builds, not releases.
    pub number: u32,
    /// Its file, with its version in the name.
    pub file: Option<PathBuf>,
    /// The file as it was found: a link, or the same.
    pub opened: PathBuf,
}

impl Runtime {
    /// That of the process; none without ROCm, nor where the program itself is the runtime.
    fn of_process() -> Option<Self> {
        if provided::chosen().is_some() {
            return None;
        }
        let hip = Hip::get().ok()?;
        let mut number = 0;
        // SAFETY: `number` receives the version.
        let status = unsafe { (hip.functions.hipRuntimeGetVersion)(&mut number) };
        Some(Runtime {
            number: u32::try_from(number)
                .ok()
                .filter(|_| status == hip::SUCCESS)?,
            file: mapped_file(hip.functions.hipRuntimeGetVersion as usize),
            opened: hip.path.clone(),
        })
    }

    /// The release that it belongs to: by the file's name (`libamdhip64.so.7.2.70203`), by `.info/version` of its
    /// installation, or else without the last number.
    fn release(&self) -> Release {
        let (major, minor) = (self.number / 10_000_000, self.number / 100_000 % 100);
        let of_same_series = |version: &Version| (version.major, version.minor) == (major, minor);
        let files = self.file.iter().chain([&self.opened]);
        let named = files.clone().find_map(|file| {
            let name = file.file_name()?.to_str()?;
            let last = Version::parse(name.split_once(".so.")?.1)?.patch;
            let patch = last.checked_sub(major * 10_000 + minor * 100)?;
            (patch < 100).then_some(Version {
                major,
                minor,
                patch,
            })
        });
        let told = || {
            files.clone().find_map(|file| {
                let installation = file.parent()?.parent()?;
                Version::parse(&text(&installation.join(".info/version"))?)
            })
        };
        // Builds are counted in thousands; a small number is one of a release.
        let counted = self.number % 100_000;
        let small = || {
            (1..100).contains(&counted).then_some(Version {
                major,
                minor,
                patch: counted,
            })
        };
        named
            .or_else(|| told().filter(of_same_series))
            .or_else(small)
            .map_or(Release::of_series(major, minor), Release::exactly)
    }
}

impl Versions {
    /// Of the running system, with the firmware of the first GPU that has any.
    pub fn read() -> Self {
        Self::read_from(Path::new("/"), Runtime::of_process().as_ref(), None)
    }

    /// Of the running system, with the firmware of the GPU at a PCI address such as `0000:03:00.0`.
    pub fn read_of(pci_id: &str) -> Self {
        Self::read_from(Path::new("/"), Runtime::of_process().as_ref(), Some(pci_id))
    }

    /// Of the tree under `root`.
    pub fn read_from(root: &Path, runtime: Option<&Runtime>, pci_id: Option<&str>) -> Self {
        let kernel_release = text(&root.join("proc/sys/kernel/osrelease"));
        let module = root.join("sys/module/amdgpu");
        let nodes = entries(&root.join("sys/class/kfd/kfd/topology/nodes"));
        Versions {
            rocm: runtime.map(Runtime::release),
            kernel: kernel_release.as_deref().and_then(Version::parse),
            kernel_release,
            amdgpu_driver: text(&module.join("version")),
            mes_firmware: mes_firmware(root, pci_id),
            saves_context: text(&module.join("parameters/cwsr_enable")).map(|value| value != "0"),
            tells_context_size: nodes
                .into_iter()
                .filter_map(|node| text(&node.join("properties")))
                .any(|properties| {
                    let size = properties
                        .lines()
                        .find_map(|l| l.strip_prefix("cwsr_size "));
                    size.is_some_and(|size| size.trim() != "0")
                }),
        }
    }

    /// What is installed of a component, in words.
    pub fn installed(&self, component: Component) -> String {
        let told = match component {
            Component::Rocm => self.rocm.map(|release| release.to_string()),
            Component::Kernel => self.kernel_release.clone(),
            Component::Firmware => self.mes_firmware.map(|version| format!("{version:#x}")),
        };
        told.unwrap_or_else(|| "of an unknown version".to_string())
    }

    /// Whether what makes an issue harmless is in place.
    pub(super) fn have(&self, cure: Cure) -> bool {
        match cure {
            Cure::ContextSave => self.saves_context == Some(false) || self.tells_context_size,
        }
    }
}

/// The version is the low twelve bits of what the driver shows.
const MES_VERSION_MASK: u32 = 0xfff;

/// From sysfs, which newer drivers fill for everybody, or from debugfs, which only root may read.
fn mes_firmware(root: &Path, pci_id: Option<&str>) -> Option<u32> {
    let is_wanted = |device: &Path| {
        pci_id
            .is_none_or(|wanted| fs::canonicalize(device).is_ok_and(|real| real.ends_with(wanted)))
    };
    let in_sysfs = entries(&root.join("sys/class/drm"))
        .into_iter()
        .map(|card| card.join("device"))
        .filter(|device| is_wanted(device))
        .find_map(|device| hexadecimal(&text(&device.join("fw_version/mes_fw_version"))?));
    let in_debugfs = || {
        entries(&root.join("sys/kernel/debug/dri"))
            .into_iter()
            // `name` begins with the driver's name and has the PCI address behind `dev=`.
            .filter(|folder| {
                let name = text(&folder.join("name")).unwrap_or_default();
                pci_id.is_none_or(|wanted| name.contains(wanted) || folder.ends_with(wanted))
            })
            .find_map(|folder| {
                let listed = text(&folder.join("amdgpu_firmware_info"))?;
                let line = listed
                    .lines()
                    .find(|line| line.starts_with("MES feature"))?;
                hexadecimal(line.split("firmware version:").nth(1)?)
            })
    };
    let found = in_sysfs.or_else(in_debugfs)?;
    Some(found & MES_VERSION_MASK).filter(|&version| version > 0)
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// What is in a folder, in the order of names.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string()).filter(|text| !text.is_empty())
}
