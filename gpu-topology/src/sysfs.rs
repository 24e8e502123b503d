//! The kernel driver's files: numbers, lists, and the nodes of its compute topology.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A compute node of the driver.
#[derive(Debug)]
pub(super) struct ComputeNode {
    /// Its number, by which links name it.
    pub index: u32,
    properties: HashMap<String, u64>,
    pub memory_bytes: u64,
}

impl ComputeNode {
    pub fn property(&self, key: &str) -> Option<u64> {
        self.properties.get(key).copied()
    }

    /// The driver packs the processor's version in decimal: 90402 is 9.4.2, that is gfx942, and 90010 is
    /// 9.0.10, that is gfx90a.
    pub fn arch(&self) -> Option<String> {
        let packed = self.property("gfx_target_version").filter(|&v| v > 0)?;
        let (major, minor, step) = (packed / 10_000, packed / 100 % 100, packed % 100);
        Some(format!("gfx{major}{minor:x}{step:x}"))
    }

    /// The driver packs bus, device and function into `location_id`.
    pub fn pci_id(&self) -> Option<String> {
        let location = self.property("location_id")?;
        let domain = self.property("domain").unwrap_or(0);
        let (bus, device, function) = (location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
        Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
    }
}

/// The GPU nodes by PCI address: of the partitions of one GPU, which share it, the first.
pub(super) fn compute_nodes(root: &Path) -> HashMap<String, ComputeNode> {
    let mut all: Vec<ComputeNode> = gpu_nodes(root).map(|(_, node)| node).collect();
    all.sort_by_key(|node| std::cmp::Reverse(node.index));
    // Of equal keys the last stays.
    all.into_iter()
        .filter_map(|node| Some((node.pci_id()?, node)))
        .collect()
}

/// The folders of the GPU nodes, in no order; nodes without SIMD units are CPUs.
pub(super) fn gpu_nodes(root: &Path) -> impl Iterator<Item = (PathBuf, ComputeNode)> {
    entries(root).filter_map(|folder| {
        let properties = properties(&folder.join("properties"))?;
        let memory_bytes = entries(&folder.join("mem_banks"))
            .filter_map(|bank| properties_of_bank(&bank))
            .fold(0, u64::saturating_add);
        let node = ComputeNode {
            index: file_name(&folder).parse().ok()?,
            properties,
            memory_bytes,
        };
        (node.property("simd_count").unwrap_or(0) > 0).then_some((folder, node))
    })
}

fn properties_of_bank(bank: &Path) -> Option<u64> {
    properties(&bank.join("properties"))?
        .get("size_in_bytes")
        .copied()
}

/// Lines of a name and a decimal number.
pub(super) fn properties(path: &Path) -> Option<HashMap<String, u64>> {
    let text = text(path)?;
    let pairs = text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_string(), value.trim().parse().ok()?))
    });
    Some(pairs.collect())
}

pub(super) fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

pub(super) fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

/// A file with one number, hexadecimal if it begins with 0x.
pub(super) fn number(path: &Path) -> Option<u64> {
    let text = text(path)?;
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}
