//! What else the kernel tells about one GPU: links, caches, memory, the PCIe slot, firmware.
//!
//! The kernel's own numbers are those of `kfd_crat.h` and `kfd_topology.c`; they are translated here.

use super::sysfs::{compute_nodes, entries, file_name, number, properties, text};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

/// What leads from a GPU to a processor or another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// PCI Express.
    Pcie,
    /// xGMI, also called Infinity Fabric.
    Xgmi,
    /// Another, by the kernel's number.
    Other(u64),
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkKind::Pcie => f.write_str("PCIe"),
            LinkKind::Xgmi => f.write_str("xGMI"),
            LinkKind::Other(number) => write!(f, "link of type {number}"),
        }
    }
}

/// A link to another node of the kernel's topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// What it is.
    pub kind: LinkKind,
    /// The node at its other end.
    pub node: u32,
    /// The GPU there, by PCI address; none for a processor.
    pub gpu: Option<String>,
    /// The kernel's distance: 20 for PCIe, 15 for each hop of xGMI.
    pub weight: u64,
    /// Bandwidth as the kernel has it, in MB/s; 0 if it does not know.
    pub min_bandwidth: u64,
    /// The same at most.
    pub max_bandwidth: u64,
    /// Whether one GPU may read and write the other's memory.
    pub peer_dma: bool,
    /// Whether atomic operations pass over it.
    pub atomics: bool,
}

/// Caches of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u64,
    /// Whether it holds data, and whether instructions.
    pub data: bool,
    /// See `data`.
    pub instructions: bool,
    /// Size of one, in bytes.
    pub bytes: u64,
    /// How many there are.
    pub count: usize,
}

/// A bank of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBank {
    /// Size in bytes.
    pub bytes: u64,
    /// Whether the host can reach all of it.
    pub host_visible: bool,
    /// Width of the bus, in bits.
    pub width: u64,
    /// Clock at most, in MHz.
    pub clock: u64,
}

/// A kind of memory as the driver counts it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// How much there is.
    pub total: u64,
    /// How much is taken, by all processes.
    pub used: u64,
}

/// A PCIe link on the way from a GPU to the processor.
#[derive(Clone, Debug, PartialEq)]
pub struct PcieLink {
    /// The device at its lower end, by PCI address.
    pub pci_id: String,
    /// Speed now, in GT/s for each lane.
    pub speed: f64,
    /// Lanes now.
    pub width: u64,
    /// Speed at most.
    pub max_speed: f64,
    /// Lanes at most.
    pub max_width: u64,
}

impl PcieLink {
    /// Bytes a second in one direction, now.
    pub fn bandwidth(&self) -> f64 {
        lanes(self.speed, self.width)
    }

    /// Bytes a second in one direction, at most.
    pub fn max_bandwidth(&self) -> f64 {
        lanes(self.max_speed, self.max_width)
    }
}

/// Bytes a second of so many lanes, without what packets cost. Lanes of 2.5 and 5 GT/s send 10 bits for 8, faster ones
/// 130 for 128.
fn lanes(speed: f64, width: u64) -> f64 {
    let share = if speed < 8.0 { 0.8 } else { 128.0 / 130.0 };
    speed * 1e9 * share / 8.0 * width as f64
}

/// What the kernel tells about one GPU beyond [`KernelGpu`](super::KernelGpu).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// Its node of the compute topology.
    pub node: Option<u32>,
    /// Number of its xGMI hive: GPUs with the same one are joined by xGMI.
    pub hive: Option<u64>,
    /// The memory node of the host that is nearest.
    pub numa: Option<u32>,
    /// Links to processors and other GPUs.
    pub links: Vec<Link>,
    /// Caches.
    pub caches: Vec<Cache>,
    /// Banks of memory.
    pub banks: Vec<MemoryBank>,
    /// Memory of its own.
    pub vram: Option<Usage>,
    /// What of it the processor can reach directly, in bytes.
    pub visible_vram: Option<u64>,
    /// Memory of the host that it may use.
    pub gtt: Option<Usage>,
    /// PCIe links up to the processor, the GPU's own first.
    pub pcie: Vec<PcieLink>,
    /// Versions of firmware by engine, such as `mec` and `mes`.
    pub firmware: BTreeMap<String, String>,
    /// Version of the card's BIOS.
    pub vbios: Option<String>,
    /// Revision of the PCI device, which tells cards of one device number apart.
    pub revision: Option<u64>,
    /// Core clock at most, in MHz.
    pub max_clock: Option<u64>,
    /// Mode of computing partitions of MI300, such as `SPX`.
    pub partition: Option<String>,
}

impl Details {
    /// Reads them for the GPU at a PCI address of the tree under `root`.
    pub fn read_from(root: &Path, pci_id: &str) -> Self {
        let folder = root.join("sys/bus/pci/devices").join(pci_id);
        let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
        let compute = compute_nodes(&nodes);
        let node = compute.get(pci_id);
        let own = node.map(|node| nodes.join(node.index.to_string()));
        let own = own.as_deref();
        let gpus: HashMap<u64, String> = (compute.iter())
            .map(|(address, node)| (node.index.into(), address.clone()))
            .collect();
        let usage = |kind: &str| {
            Some(Usage {
                total: number(&folder.join(format!("mem_info_{kind}_total")))?,
                used: number(&folder.join(format!("mem_info_{kind}_used"))).unwrap_or(0),
            })
        };
        Details {
            node: node.map(|node| node.index),
            hive: node
                .and_then(|node| node.property("hive_id"))
                .filter(|&hive| hive > 0),
            // -1 where there is only one.
            numa: text(&folder.join("numa_node")).and_then(|node| node.parse().ok()),
            links: own.map_or_else(Vec::new, |own| links(own, &gpus)),
            caches: own.map_or_else(Vec::new, caches),
            banks: own.map_or_else(Vec::new, banks),
            vram: usage("vram"),
            visible_vram: number(&folder.join("mem_info_vis_vram_total")),
            gtt: usage("gtt"),
            pcie: pcie(&folder),
            firmware: firmware(&folder.join("fw_version")),
            vbios: text(&folder.join("vbios_version")).filter(|version| !version.is_empty()),
            revision: number(&folder.join("revision")),
            max_clock: node
                .and_then(|node| node.property("max_engine_clk_fcompute"))
                .filter(|&clock| clock > 0),
            partition: text(&folder.join("current_compute_partition"))
                .filter(|mode| !mode.is_empty()),
        }
    }

    /// The slowest link on the way to the processor, as it is now.
    pub fn slowest_link(&self) -> Option<&PcieLink> {
        let bandwidth = |link: &&PcieLink| link.bandwidth();
        (self.pcie.iter()).min_by(|a, b| bandwidth(a).total_cmp(&bandwidth(b)))
    }

    /// The best that the way to the processor allows, in bytes a second for one direction.
    pub fn best_bandwidth(&self) -> Option<f64> {
        let best = self.pcie.iter().map(PcieLink::max_bandwidth);
        best.min_by(f64::total_cmp)
    }

    /// The link to another GPU.
    pub fn link_to(&self, pci_id: &str) -> Option<&Link> {
        (self.links.iter())
            .filter(|link| link.gpu.as_deref() == Some(pci_id))
            .min_by_key(|link| link.weight)
    }
}

/// Bits of a link's flags: no atomic operations of 32 or of 64 bits, no access from one GPU to the other's memory.
const NO_ATOMICS: u64 = 1 << 2 | 1 << 3;
const NO_PEER_DMA: u64 = 1 << 4;
/// Types of links.
const PCIE: u64 = 2;
const XGMI: u64 = 11;

/// PCIe links between GPUs stand in a folder of their own.
pub(super) fn links(node: &Path, gpus: &HashMap<u64, String>) -> Vec<Link> {
    let mut links: Vec<Link> = ["io_links", "p2p_links"]
        .into_iter()
        .flat_map(|folder| entries(&node.join(folder)))
        .filter_map(|link| {
            let properties = properties(&link.join("properties"))?;
            let property = |key: &str| properties.get(key).copied().unwrap_or(0);
            let to = *properties.get("node_to")?;
            Some(Link {
                kind: match property("type") {
                    PCIE => LinkKind::Pcie,
                    XGMI => LinkKind::Xgmi,
                    other => LinkKind::Other(other),
                },
                node: u32::try_from(to).ok()?,
                gpu: gpus.get(&to).cloned(),
                weight: property("weight"),
                min_bandwidth: property("min_bandwidth"),
                max_bandwidth: property("max_bandwidth"),
                peer_dma: property("flags") & NO_PEER_DMA == 0,
                atomics: property("flags") & NO_ATOMICS == 0,
            })
        })
        .collect();
    links.sort_by_key(|link| (link.node, link.weight));
    links
}

/// Bits of a cache's type.
const HOLDS_DATA: u64 = 1;
const HOLDS_INSTRUCTIONS: u64 = 2;

fn caches(node: &Path) -> Vec<Cache> {
    let mut caches: BTreeMap<Cache, usize> = BTreeMap::new();
    for cache in entries(&node.join("caches")) {
        let Some(properties) = properties(&cache.join("properties")) else {
            continue;
        };
        let property = |key: &str| properties.get(key).copied().unwrap_or(0);
        let kind = property("type");
        let cache = Cache {
            level: property("level"),
            data: kind & HOLDS_DATA != 0,
            instructions: kind & HOLDS_INSTRUCTIONS != 0,
            bytes: property("size") << 10,
            count: 0,
        };
        *caches.entry(cache).or_default() += 1;
    }
    let counted = |(cache, count)| Cache { count, ..cache };
    caches.into_iter().map(counted).collect()
}

/// The kind of a bank that the host can reach.
const HEAP_PUBLIC: u64 = 1;

pub(super) fn banks(node: &Path) -> Vec<MemoryBank> {
    (entries(&node.join("mem_banks")))
        .filter_map(|bank| {
            let properties = properties(&bank.join("properties"))?;
            let property = |key: &str| properties.get(key).copied().unwrap_or(0);
            Some(MemoryBank {
                bytes: *properties.get("size_in_bytes")?,
                host_visible: property("heap_type") == HEAP_PUBLIC,
                width: property("width"),
                clock: property("mem_clk_max"),
            })
        })
        .collect()
}

/// The links of a device and of the bridges above it, as the real path of its folder has them. Cards have bridges of
/// their own: the slot's link is that of the topmost.
fn pcie(folder: &Path) -> Vec<PcieLink> {
    let Ok(real) = std::fs::canonicalize(folder) else {
        return Vec::new();
    };
    real.ancestors()
        .map_while(|device| {
            device.join("current_link_speed").exists().then(|| {
                let speed = |name: &str| {
                    let text = text(&device.join(name))?;
                    text.split_whitespace().next()?.parse().ok()
                };
                Some(PcieLink {
                    pci_id: file_name(device),
                    speed: speed("current_link_speed")?,
                    width: number(&device.join("current_link_width"))?,
                    max_speed: speed("max_link_speed")?,
                    max_width: number(&device.join("max_link_width"))?,
                })
            })
        })
        .flatten()
        .filter(|link| link.width > 0)
        .collect()
}

fn firmware(folder: &Path) -> BTreeMap<String, String> {
    (entries(folder))
        .filter_map(|file| {
            let name = file_name(&file);
            let version = text(&file)?;
            let engine = name.strip_suffix("_fw_version")?;
            // Engines that the GPU does not have.
            let digits = version.trim_start_matches("0x").trim_start_matches('0');
            let is_there = !digits.is_empty();
            is_there.then(|| (engine.to_string(), version))
        })
        .collect()
}
