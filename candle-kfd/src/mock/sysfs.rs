//! The kernel's files that tell of GPUs, in a folder of their own.

use super::model::Model;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of the first render node.
const FIRST_RENDER: u32 = 128;

/// A folder that is removed with it.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Takes a new one among temporary files.
    pub fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("candle-kfd-mock-{}-{number}", std::process::id()));
        // Another process of the same number may have died and left its own.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.0.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is one of many temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the files say of one GPU.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub model: Model,
    pub gpu_id: u32,
    pub vram: u64,
    pub large_bar: bool,
    pub display: bool,
    /// Whether sizes of what a queue saves are told.
    pub tells_areas: bool,
    /// Whether these are the sizes of the first kernels that compared them.
    pub exact_areas: bool,
}

/// A GPU's render node, by its place among the GPUs.
pub(super) fn render_minor(index: usize) -> u32 {
    FIRST_RENDER + index as u32
}

/// Where a GPU is on the bus: bus 3 for the first, 0x13 for the next, and so on.
fn location(index: usize) -> u32 {
    (0x03 + 0x10 * index as u32) << 8
}

/// Writes the tree.
pub(super) fn write(folder: &Folder, gpus: &[Described], linked: bool) -> io::Result<()> {
    folder.write("dev/kfd", "")?;
    let topology = "sys/class/kfd/kfd/topology";
    folder.write(&format!("{topology}/generation_id"), "2\n")?;
    folder.write(
        &format!("{topology}/system_properties"),
        &format!(
            "platform_oem 0\nplatform_id 0\nplatform_rev 0\nnum_devices {}\n",
            gpus.len() + 1
        ),
    )?;
    let nodes = format!("{topology}/nodes");
    folder.write(&format!("{nodes}/0/gpu_id"), "0\n")?;
    folder.write(&format!("{nodes}/0/name"), "\n")?;
    let host = "cpu_cores_count 16\nsimd_count 0\nmem_banks_count 1\ncaches_count 0\ngfx_target_version 0\n\
                location_id 0\ndomain 0\ndrm_render_minor 0\n";
    folder.write(&format!("{nodes}/0/properties"), host)?;
    for (index, gpu) in gpus.iter().enumerate() {
        node(
            folder,
            &format!("{nodes}/{}", index + 1),
            index,
            gpus,
            linked,
        )?;
        card(folder, index, gpu)?;
    }
    Ok(())
}

/// A node of the driver's topology.
fn node(
    folder: &Folder,
    path: &str,
    index: usize,
    gpus: &[Described],
    linked: bool,
) -> io::Result<()> {
    let gpu = &gpus[index];
    let model = &gpu.model;
    folder.write(&format!("{path}/gpu_id"), &format!("{}\n", gpu.gpu_id))?;
    folder.write(&format!("{path}/name"), "ip discovery\n")?;
    let peers: Vec<usize> = (0..gpus.len())
        .filter(|&peer| linked && peer != index)
        .collect();
    let xgmi = linked && gpus.len() > 1 && model.num_sdma_xgmi_engines > 0;
    let areas = model.areas(gpu.exact_areas);
    let mut lines = vec![
        ("cpu_cores_count", 0),
        ("simd_count", model.simd_count.into()),
        ("mem_banks_count", 1),
        ("caches_count", 0),
        (
            "io_links_count",
            1 + if xgmi { peers.len() as u64 } else { 0 },
        ),
        ("p2p_links_count", if xgmi { 0 } else { peers.len() as u64 }),
        ("cpu_core_id_base", 0),
        ("simd_id_base", 0x8000_1000),
        ("max_waves_per_simd", model.max_waves_per_simd.into()),
        ("lds_size_in_kb", model.lds_size_in_kb.into()),
        ("gds_size_in_kb", 0),
        ("num_gws", 64),
        ("wave_front_size", model.wave_front_size.into()),
        ("array_count", model.array_count.into()),
        (
            "simd_arrays_per_engine",
            model.simd_arrays_per_engine.into(),
        ),
        ("cu_per_simd_array", model.cu_per_simd_array.into()),
        ("simd_per_cu", model.simd_per_cu.into()),
        ("max_slots_scratch_cu", 32),
        ("gfx_target_version", model.gfx_target_version.into()),
        ("vendor_id", 0x1002),
        ("device_id", model.device_id.into()),
        ("location_id", location(index).into()),
        ("domain", 0),
        ("drm_render_minor", render_minor(index).into()),
        ("hive_id", u64::from(xgmi) * 0x1234_5678),
        ("num_sdma_engines", model.num_sdma_engines.into()),
        ("num_sdma_xgmi_engines", model.num_sdma_xgmi_engines.into()),
        (
            "num_sdma_queues_per_engine",
            model.num_sdma_queues_per_engine.into(),
        ),
        ("num_cp_queues", model.num_cp_queues.into()),
        (
            "max_engine_clk_fcompute",
            model.max_engine_clk_fcompute.into(),
        ),
        // What the kernel shows here is 0 for each GPU with memory of its own.
        ("local_mem_size", 0),
        ("fw_version", 550),
        // Doorbells of the second kind, and unified addresses.
        ("capability", 0x2 << 12 | 1 << 27),
        ("debug_prop", 0),
        ("sdma_fw_version", 20),
        ("unique_id", 0x1000 + index as u64),
        ("num_xcc", model.num_xcc.into()),
        ("max_engine_clk_ccompute", 3000),
    ];
    if gpu.tells_areas {
        lines.push(("cwsr_size", areas.save.into()));
        lines.push(("ctl_stack_size", areas.control_stack.into()));
        lines.push(("eop_buffer_size", areas.end_of_pipe.into()));
        lines.push(("debug_memory_size", areas.debugger.into()));
    }
    folder.write(&format!("{path}/properties"), &text(&lines))?;
    let bank = [
        // 1: all of it is the host's to see, 2: not all.
        ("heap_type", if gpu.large_bar { 1 } else { 2 }),
        ("size_in_bytes", gpu.vram),
        ("flags", 0),
        ("width", model.width.into()),
        ("mem_clk_max", 1249),
    ];
    folder.write(&format!("{path}/mem_banks/0/properties"), &text(&bank))?;
    let link = |kind: u64, to: usize, weight: u64| {
        text(&[
            ("type", kind),
            ("version_major", 0),
            ("version_minor", 0),
            ("node_from", index as u64 + 1),
            ("node_to", to as u64),
            ("weight", weight),
            ("min_latency", 0),
            ("max_latency", 0),
            ("min_bandwidth", if kind == 11 { 50_000 } else { 312 }),
            ("max_bandwidth", if kind == 11 { 50_000 } else { 32_000 }),
            ("recommended_transfer_size", 0),
            ("flags", 1),
        ])
    };
    folder.write(&format!("{path}/io_links/0/properties"), &link(2, 0, 20))?;
    for (at, &peer) in peers.iter().enumerate() {
        let (place, text) = if xgmi {
            (format!("io_links/{}", at + 1), link(11, peer + 1, 15))
        } else {
            (format!("p2p_links/{at}"), link(2, peer + 1, 40))
        };
        folder.write(&format!("{path}/{place}/properties"), &text)?;
    }
    Ok(())
}

/// The PCI device, its render node and its connectors.
fn card(folder: &Folder, index: usize, gpu: &Described) -> io::Result<()> {
    let bus = location(index) >> 8;
    let address = format!("0000:{bus:02x}:00.0");
    let device = format!("sys/bus/pci/devices/{address}");
    let visible = if gpu.large_bar {
        gpu.vram
    } else {
        gpu.vram.min(256 << 20)
    };
    for (name, text) in [
        ("vendor", "0x1002".to_string()),
        ("device", format!("{:#06x}", gpu.model.device_id)),
        ("class", "0x030000".to_string()),
        ("revision", "0x00".to_string()),
        ("product_name", gpu.model.name.to_string()),
        ("mem_info_vram_total", gpu.vram.to_string()),
        ("mem_info_vram_used", "0".to_string()),
        ("mem_info_vis_vram_total", visible.to_string()),
        ("uevent", format!("DRIVER=amdgpu\nPCI_SLOT_NAME={address}")),
    ] {
        folder.write(&format!("{device}/{name}"), &format!("{text}\n"))?;
    }
    symlink(
        "../../../../bus/pci/drivers/amdgpu",
        folder.path().join(&device).join("driver"),
    )?;
    let render = render_minor(index);
    folder.write(&format!("dev/dri/renderD{render}"), "")?;
    for name in [format!("card{index}"), format!("renderD{render}")] {
        fs::create_dir_all(folder.path().join(format!("{device}/drm/{name}")))?;
        let class = folder.path().join(format!("sys/class/drm/{name}"));
        fs::create_dir_all(&class)?;
        symlink(
            format!("../../../bus/pci/devices/{address}"),
            class.join("device"),
        )?;
    }
    let status = if gpu.display {
        "connected\n"
    } else {
        "disconnected\n"
    };
    for place in [
        format!("sys/class/drm/card{index}-DP-1"),
        format!("{device}/drm/card{index}/card{index}-DP-1"),
    ] {
        folder.write(&format!("{place}/status"), status)?;
        folder.write(
            &format!("{place}/enabled"),
            if gpu.display {
                "enabled\n"
            } else {
                "disabled\n"
            },
        )?;
    }
    Ok(())
}

/// Lines of names and numbers.
fn text(lines: &[(&str, u64)]) -> String {
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name} {value}");
        text
    })
}
