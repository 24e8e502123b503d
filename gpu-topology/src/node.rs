//! What a program that drives a GPU by itself needs to know of it: the compute node, in full.
//!
//! Names are those of `kfd_sysfs.h` and of `kfd_topology.c`, which writes the files.

use super::details::{banks, links};
use super::sysfs::{gpu_nodes, number, ComputeNode};
use super::{Link, MemoryBank};
use std::collections::HashMap;
use std::path::Path;

/// A GPU of the driver's compute topology. Numbers that the kernel does not tell are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Number of the node, by which links name it.
    pub index: u32,
    /// Number by which the driver's requests name the GPU.
    pub gpu_id: u32,
    /// Processor, for example `gfx1100`; empty if the kernel does not tell.
    pub arch: String,
    /// PCI address, for example `0000:03:00.0`. Partitions of a GPU share it.
    pub pci_id: String,
    /// PCI device number.
    pub device_id: u32,
    /// Number of the render node: `/dev/dri/renderD<minor>`.
    pub render_minor: u32,
    /// SIMD units.
    pub simd_count: u32,
    /// SIMD units of a compute unit.
    pub simd_per_cu: u32,
    /// Shader arrays of all engines.
    pub array_count: u32,
    /// Shader arrays of an engine.
    pub arrays_per_engine: u32,
    /// Compute units of a shader array, those included that are switched off.
    pub cu_per_array: u32,
    /// Dies (XCC) that compute; at least 1.
    pub xcc_count: u32,
    /// Threads of a wave.
    pub wave_size: u32,
    /// Waves that a SIMD unit holds at most.
    pub max_waves_per_simd: u32,
    /// Waves of a compute unit that may have scratch memory at a time.
    pub max_scratch_waves_per_cu: u32,
    /// LDS of a compute unit, in bytes.
    pub lds_bytes: u32,
    /// Copy engines that reach the host.
    pub sdma_engines: u32,
    /// Copy engines that reach other GPUs over xGMI.
    pub sdma_xgmi_engines: u32,
    /// Queues of a copy engine.
    pub sdma_queues_per_engine: u32,
    /// Compute queues that the GPU runs at a time.
    pub compute_queues: u32,
    /// Bytes to which a queue's waves are saved, if the kernel tells.
    pub cwsr_bytes: u32,
    /// Bytes of a queue's control stack, if the kernel tells.
    pub control_stack_bytes: u32,
    /// Bytes of the buffer in which the end of packets is noted, if the kernel tells.
    pub eop_bytes: u32,
    /// `HSA_CAP_…` bits.
    pub capability: u32,
    /// `HSA_CAP2_…` bits.
    pub capability2: u32,
    /// `HSA_DBG_…` bits.
    pub debug_properties: u64,
    /// Memory of its own, in bytes.
    pub memory_bytes: u64,
    /// Banks of that memory.
    pub banks: Vec<MemoryBank>,
    /// Core clock at most, in MHz.
    pub max_clock: u32,
    /// Version of the firmware that runs compute queues.
    pub firmware: u32,
    /// Version of the firmware of the copy engines.
    pub sdma_firmware: u32,
    /// Number of its xGMI hive; 0 if it is in none.
    pub hive: u64,
    /// A number that no other GPU has; 0 if it has none.
    pub unique_id: u64,
    /// Links to processors and other GPUs.
    pub links: Vec<Link>,
}

impl Node {
    /// The GPUs that the driver offers in the tree under `root`, by the number of their nodes. A GPU that this process may
    /// not use, as in some containers, has no number of its own there and is left out.
    pub fn read_from(root: &Path) -> Vec<Node> {
        let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
        let found: Vec<_> = gpu_nodes(&nodes).collect();
        let addresses: HashMap<u64, String> = (found.iter())
            .filter_map(|(_, node)| Some((node.index.into(), node.pci_id()?)))
            .collect();
        let mut gpus: Vec<Node> = (found.iter())
            .filter_map(|(folder, node)| Self::of(folder, node, &addresses))
            .collect();
        gpus.sort_by_key(|node| node.index);
        gpus
    }

    fn of(folder: &Path, node: &ComputeNode, addresses: &HashMap<u64, String>) -> Option<Node> {
        let wide = |key: &str| node.property(key).unwrap_or(0);
        let word = |key: &str| u32::try_from(wide(key)).unwrap_or(0);
        let gpu_id = number(&folder.join("gpu_id")).and_then(|id| u32::try_from(id).ok())?;
        (gpu_id > 0).then(|| Node {
            index: node.index,
            gpu_id,
            arch: node.arch().unwrap_or_default(),
            pci_id: addresses
                .get(&node.index.into())
                .cloned()
                .unwrap_or_default(),
            device_id: word("device_id"),
            render_minor: word("drm_render_minor"),
            simd_count: word("simd_count"),
            simd_per_cu: word("simd_per_cu"),
            array_count: word("array_count"),
            arrays_per_engine: word("simd_arrays_per_engine"),
            cu_per_array: word("cu_per_simd_array"),
            xcc_count: word("num_xcc").max(1),
            wave_size: word("wave_front_size"),
            max_waves_per_simd: word("max_waves_per_simd"),
            max_scratch_waves_per_cu: word("max_slots_scratch_cu"),
            lds_bytes: word("lds_size_in_kb").saturating_mul(1 << 10),
            sdma_engines: word("num_sdma_engines"),
            sdma_xgmi_engines: word("num_sdma_xgmi_engines"),
            sdma_queues_per_engine: word("num_sdma_queues_per_engine"),
            compute_queues: word("num_cp_queues"),
            cwsr_bytes: word("cwsr_size"),
            control_stack_bytes: word("ctl_stack_size"),
            eop_bytes: word("eop_buffer_size"),
            capability: word("capability"),
            capability2: word("capability2"),
            debug_properties: wide("debug_prop"),
            memory_bytes: node.memory_bytes.max(wide("local_mem_size")),
            banks: banks(folder),
            max_clock: word("max_engine_clk_fcompute"),
            firmware: word("fw_version"),
            sdma_firmware: word("sdma_fw_version"),
            hive: wide("hive_id"),
            unique_id: wide("unique_id"),
            links: links(folder, addresses),
        })
    }

    /// Compute units.
    pub fn cu_count(&self) -> u32 {
        self.simd_count.checked_div(self.simd_per_cu).unwrap_or(0)
    }

    /// Memory of its own that the processor reaches, in bytes: all of it, or nothing that a program could ask for.
    pub fn visible_bytes(&self) -> u64 {
        let visible = self.banks.iter().filter(|bank| bank.host_visible);
        visible.fold(0, |sum, bank| sum.saturating_add(bank.bytes))
    }
}
