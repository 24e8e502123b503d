//! What an integrated GPU can have of the host's memory, on trees as the kernel lays them out.

use candle_rocm::host_memory::{shared_room, HostMemory};
use std::fs;
use std::path::PathBuf;

const GIB: u64 = 1 << 30;
const APU: &str = "0000:c3:00.0";

/// A root folder that is removed afterwards.
struct Root(PathBuf);

impl Root {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("host-memory-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Root(path)
    }

    fn write(&self, path: &str, text: impl ToString) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.to_string() + "\n").unwrap();
    }

    fn available(&self, bytes: u64) {
        let kib = bytes / 1024;
        self.write(
            "proc/meminfo",
            format!(
                "MemTotal:       131072000 kB\nMemFree:         1024 kB\nMemAvailable:   {kib} kB"
            ),
        );
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn free_memory_of_the_gpu_is_bounded_by_the_hosts() {
    let root = Root::new("available");
    let room = |free| shared_room(&root.0, APU, free, 120 * GIB);
    // Nothing is known: what HIP says.
    assert_eq!(room(110 * GIB), Some(110 * GIB));
    root.available(94 * GIB);
    assert_eq!(room(120 * GIB), Some(94 * GIB));
    assert_eq!(room(3 * GIB), Some(3 * GIB));
}

#[test]
fn a_carve_out_as_large_as_the_memory_is_the_gpus_own() {
    let root = Root::new("carve-out");
    root.available(8 * GIB);
    let file = format!("sys/bus/pci/devices/{APU}/mem_info_vram_total");
    root.write(&file, 96 * GIB);
    assert_eq!(shared_room(&root.0, APU, 90 * GIB, 96 * GIB - GIB), None);
    // A small one is not what HIP tells of.
    root.write(&file, GIB / 2);
    assert_eq!(shared_room(&root.0, APU, 90 * GIB, 96 * GIB), Some(8 * GIB));
}

#[test]
fn a_containers_limit_counts_without_what_it_caches_of_files() {
    let root = Root::new("group");
    root.available(50 * GIB);
    root.write("proc/self/cgroup", "0::/system.slice/llm.service");
    let group = "sys/fs/cgroup/system.slice/llm.service";
    root.write(&format!("{group}/memory.max"), "max");
    root.write(&format!("{group}/memory.current"), GIB);
    assert_eq!(HostMemory::read_from(&root.0).room(), Some(50 * GIB));
    // The slice above is limited.
    root.write("sys/fs/cgroup/system.slice/memory.max", 16 * GIB);
    root.write("sys/fs/cgroup/system.slice/memory.current", 10 * GIB);
    let stat = format!("anon 5\ninactive_file {}\nactive_file 7", 4 * GIB);
    root.write("sys/fs/cgroup/system.slice/memory.stat", stat);
    let memory = HostMemory::read_from(&root.0);
    assert_eq!(memory.group_room, Some(10 * GIB));
    assert_eq!(memory.available, Some(50 * GIB));
    assert_eq!(memory.room(), Some(10 * GIB));
    // More than the limit is used: nothing is left.
    root.write("sys/fs/cgroup/system.slice/memory.current", 40 * GIB);
    assert_eq!(HostMemory::read_from(&root.0).room(), Some(0));
}

#[test]
fn the_older_interface_is_read_as_well() {
    let root = Root::new("legacy");
    root.write(
        "proc/self/cgroup",
        "5:cpu,cpuacct:/\n4:memory:/docker/abc\n",
    );
    // In the container only the root of the hierarchy is there.
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", 8 * GIB);
    root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", 3 * GIB);
    assert_eq!(HostMemory::read_from(&root.0).room(), Some(5 * GIB));
    root.write(
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        9_223_372_036_854_771_712u64,
    );
    assert_eq!(HostMemory::read_from(&root.0).room(), None);
}

#[test]
fn this_machine_tells() {
    assert!(HostMemory::read().available.is_some_and(|bytes| bytes > 0));
}
