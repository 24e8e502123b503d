//! Whether an IOMMU stands between GPUs and memory.

use super::sysfs::{entries, text};
use std::fmt;
use std::path::Path;

/// How devices' accesses to memory are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iommu {
    /// They are not: there is no IOMMU, or it is off.
    #[default]
    Off,
    /// It is on, and the host's devices are passed through.
    Passthrough,
    /// Every access is translated. Copies between GPUs are slow then, or hang.
    Translating,
}

impl Iommu {
    /// Reads it for the GPUs at some PCI addresses.
    ///
    /// What counts is the type of a GPU's group, which a kernel may also have by its configuration. Where none is shown,
    /// as in some containers, it is the kernel's command line.
    /// (<https://docs.kernel.org/admin-guide/kernel-parameters.html>, `iommu=`, and the files of
    /// <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-kernel-iommu_groups>.)
    pub fn read_from<'a>(root: &Path, pci_ids: impl IntoIterator<Item = &'a str>) -> Self {
        let devices = root.join("sys/bus/pci/devices");
        let kinds: Vec<String> = (pci_ids.into_iter())
            .filter_map(|pci_id| text(&devices.join(pci_id).join("iommu_group/type")))
            .collect();
        if !kinds.is_empty() {
            let passes = kinds.iter().all(|kind| kind == "identity");
            return if passes {
                Iommu::Passthrough
            } else {
                Iommu::Translating
            };
        }
        if entries(&root.join("sys/class/iommu")).next().is_none() {
            return Iommu::Off;
        }
        let line = text(&root.join("proc/cmdline")).unwrap_or_default();
        let mut words = line.split_whitespace();
        let passes = words.any(|word| matches!(word, "iommu=pt" | "iommu.passthrough=1"));
        if passes {
            Iommu::Passthrough
        } else {
            Iommu::Translating
        }
    }

    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Iommu::Off => "off",
            Iommu::Passthrough => "passthrough",
            Iommu::Translating => "translating",
        }
    }
}

impl fmt::Display for Iommu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
