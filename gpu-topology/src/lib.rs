//! AMD GPUs as the kernel driver sees them, with or without ROCm.
//!
//! Sources: the PCI devices under `/sys/bus/pci` and `/sys/class/drm`, and the compute nodes of the amdgpu
//! driver under `/sys/class/kfd`. Nothing is opened except `/dev/kfd` and the render nodes, to learn
//! whether this user may.

mod acs;
mod arch;
mod cards;
mod details;
mod displays;
mod fabric;
mod iommu;
mod node;
mod sysfs;

pub use arch::{Arch, Generation, Matrix};
pub use cards::{Card, CARDS};
pub use details::{Cache, Details, Link, LinkKind, MemoryBank, PcieLink, Usage};
pub use displays::displays;
pub use fabric::{Fabric, FabricGpu, Reach, Trap};
pub use iommu::Iommu;
pub use node::Node;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use sysfs::{compute_nodes, entries, file_name, number, text, ComputeNode};

/// PCI vendor number of AMD (ATI).
const AMD_VENDOR: u32 = 0x1002;

/// The AMD GPUs of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Ordered by PCI address.
    pub gpus: Vec<KernelGpu>,
}

/// One GPU as the kernel describes it. What the kernel does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelGpu {
    /// PCI address, for example `0000:03:00.0`.
    pub pci_id: String,
    /// PCI device number.
    pub device_id: u32,
    /// Marketing name, from the card itself or from a table of common cards.
    pub name: Option<String>,
    /// Processor, for example `gfx1100`.
    pub arch: Option<String>,
    /// SIMD units; a compute unit has 2 on RDNA and 4 on CDNA.
    pub simd_count: Option<u64>,
    /// Threads of a wave.
    pub wave_size: Option<u64>,
    /// Device memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// What keeps programs from computing on it; empty if nothing is known to.
    pub obstacles: Vec<Obstacle>,
}

impl KernelGpu {
    /// The name, or else the processor, or else the PCI numbers.
    pub fn display_name(&self) -> String {
        match (&self.name, &self.arch) {
            (Some(name), _) => name.clone(),
            (None, Some(arch)) => format!("AMD GPU ({arch})"),
            (None, None) => format!("AMD GPU (PCI {AMD_VENDOR:04x}:{:04x})", self.device_id),
        }
    }

    /// More of what the running system tells about it.
    pub fn details(&self) -> Details {
        Details::read_from(Path::new("/"), &self.pci_id)
    }
}

/// Why a GPU cannot be used. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No driver, or not amdgpu, is bound to the card.
    NoDriver {
        /// The driver that has it instead.
        bound: Option<String>,
    },
    /// The driver offers no compute interface.
    NoKfd,
    /// The driver does not list the card as a compute node.
    NotComputeNode,
    /// This user may not open a device file.
    NoPermission {
        /// The device file.
        path: PathBuf,
    },
    /// This product has no kernels for the processor.
    UnsupportedArch {
        /// The processor.
        arch: String,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NoDriver { bound: None } => f.write_str(
                "no driver is bound to it: load the kernel's amdgpu driver (modprobe amdgpu; it needs the amdgpu firmware)",
            ),
            Obstacle::NoDriver { bound: Some(driver) } => write!(
                f,
                "the driver {driver} is bound to it: compute needs the kernel's amdgpu driver"
            ),
            Obstacle::NoKfd => f.write_str(
                "/dev/kfd does not exist: the kernel's amdgpu driver lacks compute support (CONFIG_HSA_AMD), or this container was started without --device=/dev/kfd --device=/dev/dri",
            ),
            Obstacle::NotComputeNode => f.write_str(
                "the amdgpu driver does not list it for compute: see what it reports with dmesg | grep -e amdgpu -e kfd",
            ),
            Obstacle::NoPermission { path } => write!(
                f,
                "no permission to open {}: add the user to the groups render and video (usermod -aG render,video USER) and log in again",
                path.display()
            ),
            Obstacle::UnsupportedArch { arch } => write!(
                f,
                "its processor {arch} is not supported: CDNA (gfx908, gfx90a, gfx942, gfx950), gfx906 and RDNA (gfx10, gfx11, gfx12) are"
            ),
        }
    }
}

/// Whether the kernels of this product are made for a processor such as `gfx942`.
pub fn is_supported_arch(arch: &str) -> bool {
    Arch::parse(arch).is_some_and(|arch| arch.is_supported())
}

impl Topology {
    /// Reads the running system.
    pub fn read() -> Self {
        Self::read_from(Path::new("/"), &|path| {
            fs::File::options()
                .read(true)
                .write(true)
                .open(path)
                .map(drop)
        })
    }

    /// Reads the tree under `root`; `open` tells whether this user can open a device file of it.
    pub fn read_from(root: &Path, open: &dyn Fn(&Path) -> io::Result<()>) -> Self {
        let nodes = compute_nodes(&root.join("sys/class/kfd/kfd/topology/nodes"));
        let mut pci = pci_devices(root);
        for address in nodes.keys() {
            // A container may hide the PCI tree and still show the driver's.
            pci.entry(address.clone()).or_insert_with(|| PciDevice {
                driver: Some("amdgpu".to_string()),
                ..PciDevice::default()
            });
        }
        let kfd = root.join("dev/kfd");
        let gpus = pci
            .into_iter()
            .map(|(address, device)| {
                let node = nodes.get(&address);
                let obstacles = obstacles(root, &kfd, &device, node, open);
                gpu(address, device, node, obstacles)
            })
            .collect();
        Topology { gpus }
    }

    /// How the GPUs that can be used are joined.
    pub fn fabric(&self) -> Fabric {
        let usable = self.gpus.iter().filter(|gpu| gpu.obstacles.is_empty());
        Fabric::read(usable.map(|gpu| gpu.pci_id.as_str()))
    }

    /// Why HIP shows no device, and what to do about it.
    pub fn why_no_device(&self) -> String {
        if self.gpus.is_empty() {
            return "this machine has no AMD GPU that the kernel knows of (none under /sys/bus/pci or /sys/class/kfd)"
                .to_string();
        }
        let described: Vec<String> = self
            .gpus
            .iter()
            .map(|gpu| {
                let why: Vec<String> = gpu.obstacles.iter().map(ToString::to_string).collect();
                let why = if why.is_empty() {
                    hidden()
                } else {
                    why.join("; ")
                };
                format!("{} at {}: {why}", gpu.display_name(), gpu.pci_id)
            })
            .collect();
        described.join(". ")
    }
}

/// What may hide a GPU that the driver offers.
fn hidden() -> String {
    let set: Vec<String> = [
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    ]
    .iter()
    .filter_map(|name| {
        let value = std::env::var(name).ok()?;
        Some(format!("{name}={value}"))
    })
    .collect();
    if set.is_empty() {
        "the driver offers it, but ROCm does not: check that this ROCm release supports the card (rocminfo)".to_string()
    } else {
        format!("it may be hidden by {}: unset it", set.join(" and "))
    }
}

fn gpu(
    pci_id: String,
    device: PciDevice,
    node: Option<&ComputeNode>,
    obstacles: Vec<Obstacle>,
) -> KernelGpu {
    let property = |key: &str| node.and_then(|node| node.property(key)).filter(|&v| v > 0);
    let device_id = device
        .device_id
        .or(property("device_id").and_then(|id| u32::try_from(id).ok()))
        .unwrap_or(0);
    KernelGpu {
        name: device
            .product_name
            .or_else(|| Card::of(device_id).map(|card| card.name.to_string())),
        arch: node.and_then(ComputeNode::arch),
        simd_count: property("simd_count"),
        wave_size: property("wave_front_size"),
        memory_bytes: node
            .map(|node| node.memory_bytes)
            .filter(|&bytes| bytes > 0)
            .or(device.memory_bytes),
        pci_id,
        device_id,
        obstacles,
    }
}

fn obstacles(
    root: &Path,
    kfd: &Path,
    device: &PciDevice,
    node: Option<&ComputeNode>,
    open: &dyn Fn(&Path) -> io::Result<()>,
) -> Vec<Obstacle> {
    if device.driver.as_deref() != Some("amdgpu") {
        let bound = device.driver.clone();
        return vec![Obstacle::NoDriver { bound }];
    }
    if !kfd.exists() {
        return vec![Obstacle::NoKfd];
    }
    let Some(node) = node else {
        return vec![Obstacle::NotComputeNode];
    };
    let render = node
        .property("drm_render_minor")
        .filter(|&minor| minor > 0)
        .map(|minor| root.join(format!("dev/dri/renderD{minor}")));
    let denied = |path: &PathBuf| {
        open(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    let mut found: Vec<Obstacle> = [Some(kfd.to_path_buf()), render]
        .into_iter()
        .flatten()
        .filter(denied)
        .map(|path| Obstacle::NoPermission { path })
        .collect();
    if let Some(arch) = node.arch().filter(|arch| !is_supported_arch(arch)) {
        found.push(Obstacle::UnsupportedArch { arch });
    }
    found
}

#[derive(Debug, Default)]
struct PciDevice {
    device_id: Option<u32>,
    driver: Option<String>,
    product_name: Option<String>,
    memory_bytes: Option<u64>,
}

/// AMD's display and accelerator functions by PCI address.
fn pci_devices(root: &Path) -> BTreeMap<String, PciDevice> {
    let on_bus = entries(&root.join("sys/bus/pci/devices"));
    let cards = entries(&root.join("sys/class/drm"))
        .filter(|path| file_name(path).starts_with("card"))
        .map(|path| path.join("device"));
    let mut devices = BTreeMap::new();
    for folder in on_bus.chain(cards) {
        if number(&folder.join("vendor")) != Some(AMD_VENDOR.into()) {
            continue;
        }
        // 0x03: display controller. 0x12: processing accelerator.
        let class = number(&folder.join("class")).map(|class| class >> 16);
        if !matches!(class, Some(0x03 | 0x12) | None) {
            continue;
        }
        let slot = text(&folder.join("uevent")).and_then(|uevent| {
            let slot = uevent
                .lines()
                .find_map(|line| line.strip_prefix("PCI_SLOT_NAME="));
            slot.map(str::to_string)
        });
        let real = fs::canonicalize(&folder).unwrap_or_else(|_| folder.clone());
        let address = slot.unwrap_or_else(|| file_name(&real));
        devices.entry(address).or_insert_with(|| PciDevice {
            device_id: number(&folder.join("device")).and_then(|id| u32::try_from(id).ok()),
            driver: fs::read_link(folder.join("driver"))
                .ok()
                .map(|driver| file_name(&driver)),
            product_name: text(&folder.join("product_name")).filter(|name| !name.is_empty()),
            memory_bytes: number(&folder.join("mem_info_vram_total")),
        });
    }
    devices
}
