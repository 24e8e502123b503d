//! Kernel, distribution, container, IOMMU, security modules.

use crate::Check;
use candle_rocm::topology::{Iommu, Topology};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Parameters of the driver that change how computing works.
const DRIVER_PARAMETERS: &[&str] = &[
    "cwsr_enable",
    "gttsize",
    "mes",
    "no_system_mem_limit",
    "noretry",
    "ppfeaturemask",
    "sched_policy",
    "vm_fragment_size",
];

/// What the machine is.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub kernel: String,
    pub distribution: Option<String>,
    /// Version of the driver if it is not the kernel's own.
    pub amdgpu: Option<String>,
    pub amdgpu_parameters: BTreeMap<&'static str, String>,
    pub memory_bytes: Option<u64>,
    pub container: Option<&'static str>,
    #[serde(serialize_with = "by_name")]
    pub iommu: Iommu,
    pub selinux: bool,
    /// The AppArmor profile that holds for this process.
    pub apparmor: Option<String>,
}

fn by_name<S: Serializer>(iommu: &Iommu, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(iommu.name())
}

impl Machine {
    pub fn facts(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

fn text(root: &Path, path: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(path)).ok()?;
    Some(text.trim().to_string()).filter(|text| !text.is_empty())
}

/// Reads the tree under `root` and tells what is worth knowing.
pub(super) fn look(check: &Check, root: &Path, topology: &Topology) -> Machine {
    let machine = read(root, topology);
    let driver = match &machine.amdgpu {
        Some(version) => format!("amdgpu {version}"),
        None if root.join("sys/module/amdgpu").exists() => "the kernel's own amdgpu".to_string(),
        None => "amdgpu not loaded".to_string(),
    };
    let distribution = machine
        .distribution
        .as_deref()
        .unwrap_or("unknown distribution");
    check.note(format!(
        "{distribution}, kernel {}, {driver}",
        machine.kernel
    ));
    if let Some(container) = machine.container {
        check.info(
            "container",
            format!("this runs in {container}"),
            "it needs the devices /dev/kfd and /dev/dri, and this user the groups that own them there",
        );
    }
    if machine.selinux && machine.container.is_some() {
        check.info(
            "selinux",
            "SELinux is enforcing, and may keep a container from the GPU",
            "if the GPU does not answer: setsebool -P container_use_devices=true, or --security-opt label=disable",
        );
    }
    if let Some(profile) = &machine.apparmor {
        check.info(
            "apparmor",
            format!("AppArmor's profile {profile} holds for this process"),
            "",
        );
    }
    machine
}

fn read(root: &Path, topology: &Topology) -> Machine {
    let addresses = topology.gpus.iter().map(|gpu| gpu.pci_id.as_str());
    let release = text(root, "etc/os-release").unwrap_or_default();
    let distribution = release.lines().find_map(|line| {
        let name = line.strip_prefix("PRETTY_NAME=")?;
        Some(name.trim_matches('"').to_string())
    });
    let memory = text(root, "proc/meminfo").unwrap_or_default();
    let memory = memory.lines().find_map(|line| {
        let kib = line
            .strip_prefix("MemTotal:")?
            .trim()
            .trim_end_matches("kB");
        kib.trim().parse::<u64>().ok()
    });
    let parameters = DRIVER_PARAMETERS.iter().filter_map(|name| {
        let path = format!("sys/module/amdgpu/parameters/{name}");
        Some((*name, text(root, &path)?))
    });
    Machine {
        kernel: text(root, "proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_string()),
        distribution,
        amdgpu: text(root, "sys/module/amdgpu/version"),
        amdgpu_parameters: parameters.collect(),
        memory_bytes: memory.map(|kib| kib << 10),
        container: container(root),
        iommu: Iommu::read_from(root, addresses),
        selinux: text(root, "sys/fs/selinux/enforce").as_deref() == Some("1"),
        apparmor: text(root, "proc/self/attr/current")
            .filter(|_| {
                text(root, "sys/module/apparmor/parameters/enabled").as_deref() == Some("Y")
            })
            .filter(|profile| !profile.starts_with("unconfined")),
    }
}

fn container(root: &Path) -> Option<&'static str> {
    let groups = text(root, "proc/1/cgroup").unwrap_or_default();
    let kernel = text(root, "proc/version")
        .unwrap_or_default()
        .to_lowercase();
    let kind = text(root, "run/systemd/container").unwrap_or_default();
    let signs = [
        (
            root.join("var/run/secrets/kubernetes.io").exists() || groups.contains("kubepods"),
            "Kubernetes",
        ),
        (root.join("run/.containerenv").exists(), "Podman"),
        (
            root.join(".dockerenv").exists() || groups.contains("/docker"),
            "Docker",
        ),
        (kind.contains("lxc") || groups.contains("/lxc"), "LXC"),
        (!kind.is_empty(), "a container"),
        (kernel.contains("microsoft"), "WSL"),
    ];
    signs
        .iter()
        .find(|(found, _)| *found)
        .map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn kernel_driver_and_distribution_are_read() {
        let root = tree(&[
            (
                "etc/os-release",
                "NAME=x\nPRETTY_NAME=\"Ubuntu 24.04.1 LTS\"\n",
            ),
            ("proc/sys/kernel/osrelease", "6.8.0-45-generic\n"),
            ("proc/meminfo", "MemTotal:       65536 kB\n"),
            ("sys/module/amdgpu/version", "6.10.5\n"),
            ("sys/module/amdgpu/parameters/cwsr_enable", "1\n"),
        ]);
        let machine = read(root.path(), &Topology::default());
        assert_eq!(machine.kernel, "6.8.0-45-generic");
        assert_eq!(machine.distribution.as_deref(), Some("Ubuntu 24.04.1 LTS"));
        assert_eq!(machine.amdgpu.as_deref(), Some("6.10.5"));
        assert_eq!(machine.amdgpu_parameters["cwsr_enable"], "1");
        assert_eq!(machine.memory_bytes, Some(64 << 20));
        assert_eq!((machine.container, machine.iommu), (None, Iommu::Off));
    }

    #[test]
    fn containers_are_told_by_their_signs() {
        for (path, text, name) in [
            (".dockerenv", "", "Docker"),
            ("run/.containerenv", "", "Podman"),
            (
                "proc/1/cgroup",
                "0::/kubepods/besteffort/pod1\n",
                "Kubernetes",
            ),
            ("proc/1/cgroup", "0::/lxc/web\n", "LXC"),
            ("run/systemd/container", "systemd-nspawn\n", "a container"),
            (
                "proc/version",
                "Linux version 5.15 (microsoft-standard-WSL2)\n",
                "WSL",
            ),
        ] {
            assert_eq!(
                container(tree(&[(path, text)]).path()),
                Some(name),
                "{path}"
            );
        }
        assert_eq!(
            container(tree(&[("proc/1/cgroup", "0::/init.scope\n")]).path()),
            None
        );
    }
}
