//! What a GPU that shares the host's memory can really have of it.
//!
//! Such a GPU's free memory, as HIP gives it, may be a limit of the driver that knows nothing of what programs hold:
//! whoever fills it is killed by the system instead of being refused
//! (<https://github.com/vllm-project/vllm/issues/50320>). So what the host has left, and what a container may take,
//! bound it.

use crate::{Device, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Memory of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// Bytes that programs can have without others being pushed out; none if the system does not tell.
    pub available: Option<u64>,
    /// Bytes that this process's control groups still let it have; none without a limit.
    pub group_room: Option<u64>,
}

impl HostMemory {
    /// Of the running system.
    pub fn read() -> Self {
        Self::read_from(Path::new("/"))
    }

    /// Of the tree under `root`.
    pub fn read_from(root: &Path) -> Self {
        let meminfo = text(&root.join("proc/meminfo")).unwrap_or_default();
        let available = meminfo
            .lines()
            .find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib: Option<u64> =
            available.and_then(|line| line.split_whitespace().next()?.parse().ok());
        HostMemory {
            available: kib.map(|kib| kib.saturating_mul(1024)),
            group_room: group_room(root),
        }
    }

    /// The smaller of the two; none if neither is known.
    pub fn room(&self) -> Option<u64> {
        self.available.into_iter().chain(self.group_room).min()
    }
}

/// The least that is left in the process's control group or one above it, by either version of the interface.
fn group_room(root: &Path) -> Option<u64> {
    let groups = text(&root.join("proc/self/cgroup"))?;
    let rooms = groups.lines().flat_map(|line| {
        // number:controllers:path
        let mut parts = line.splitn(3, ':');
        let (controllers, path) = (parts.nth(1), parts.next());
        let files = match controllers {
            Some("") => Some(("sys/fs/cgroup", &UNIFIED)),
            Some(names) if names.split(',').any(|name| name == "memory") => {
                Some(("sys/fs/cgroup/memory", &LEGACY))
            }
            _ => None,
        };
        let Some((mount, files)) = files else {
            return Vec::new();
        };
        let mount = root.join(mount);
        let group = mount.join(path.unwrap_or_default().trim_start_matches('/'));
        // In a container the path may be the host's, of which only the root is there.
        let above: Vec<PathBuf> = group
            .ancestors()
            .take_while(|folder| folder.starts_with(&mount))
            .map(Path::to_path_buf)
            .collect();
        above
            .iter()
            .filter_map(|folder| files.room(folder))
            .collect::<Vec<_>>()
    });
    rooms.min()
}

/// The files of a control group.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with what is cached of files and is given up before anything else.
    cached: &'static str,
}

const UNIFIED: GroupFiles = GroupFiles {
    limit: "memory.max",
    used: "memory.current",
    cached: "inactive_file ",
};
const LEGACY: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file ",
};

/// What the older interface says instead of "no limit" is near this.
const NO_LIMIT: u64 = 1 << 60;

impl GroupFiles {
    fn room(&self, folder: &Path) -> Option<u64> {
        let number = |name: &str| text(&folder.join(name))?.parse::<u64>().ok();
        let limit = number(self.limit).filter(|&limit| limit < NO_LIMIT)?;
        let used = number(self.used).unwrap_or(0);
        let stat = text(&folder.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(self.cached));
        let cached: u64 = cached.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    }
}

/// Bytes of memory that the firmware has set aside for the GPU at a PCI address alone; none if the driver does not tell.
fn carve_out(root: &Path, pci_id: &str) -> Option<u64> {
    let device = root.join("sys/bus/pci/devices").join(pci_id);
    text(&device.join("mem_info_vram_total"))?.parse().ok()
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

/// Bytes that an integrated GPU with `free` of `total` bytes can have of the host's memory under `root`; none if all of
/// its memory was set aside for it, which the host does not use.
pub fn shared_room(root: &Path, pci_id: &str, free: u64, total: u64) -> Option<u64> {
    // HIP takes off a little of what the firmware set aside.
    let own = carve_out(root, pci_id).is_some_and(|bytes| bytes >= total / 16 * 15);
    if own {
        return None;
    }
    let room = HostMemory::read_from(root).room();
    Some(room.map_or(free, |room| room.min(free)))
}

impl Device {
    /// Bytes that the GPU can have if it shares the host's memory: no more than the host has left and the process's
    /// control group allows. None for a GPU with memory of its own, of which [`Device::memory_info`] tells.
    ///
    /// # Errors
    /// HIP's.
    pub fn shared_memory_room(&self) -> Result<Option<u64>> {
        if !self.properties().integrated {
            return Ok(None);
        }
        let (free, total) = self.memory_info()?;
        let pci_id = &self.properties().pci_id;
        Ok(shared_room(
            Path::new("/"),
            pci_id,
            free as u64,
            total as u64,
        ))
    }
}
