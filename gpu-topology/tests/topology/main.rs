//! The kernel driver's view of GPUs, on trees as the driver lays them out.

mod details;
mod fabric;

use gpu_topology::{
    displays, is_supported_arch, Details, Fabric, Iommu, KernelGpu, LinkKind, Node, Obstacle,
    Reach, Topology, Trap,
};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A root folder that is removed afterwards.
struct Root(PathBuf);

impl Root {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("topology-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Root(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A PCI function as `/sys/bus/pci/devices` shows it.
    fn pci(&self, address: &str, vendor: &str, device: &str, class: &str, driver: Option<&str>) {
        let folder = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{folder}/vendor"), &format!("{vendor}\n"));
        self.write(&format!("{folder}/device"), &format!("{device}\n"));
        self.write(&format!("{folder}/class"), &format!("{class}\n"));
        if let Some(driver) = driver {
            let link = self.0.join(&folder).join("driver");
            symlink(format!("../../../../bus/pci/drivers/{driver}"), link).unwrap();
        }
    }

    /// A compute node with its memory.
    fn node(&self, index: u32, properties: &str, memory: u64) {
        let folder = format!("sys/class/kfd/kfd/topology/nodes/{index}");
        self.write(&format!("{folder}/properties"), properties);
        self.write(
            &format!("{folder}/mem_banks/0/properties"),
            &format!("heap_type 1\nsize_in_bytes {memory}\nflags 0\nwidth 384\nmem_clk_max 1249\n"),
        );
    }

    fn read(&self) -> Topology {
        Topology::read_from(&self.0, &|_| Ok(()))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const CPU: &str =
    "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\nlocation_id 0\ndomain 0\n";

/// A workstation: an RX 7900 XTX at 03:00.0 and the CPU's own GPU at 0d:00.0.
fn workstation(root: &Root) {
    root.pci(
        "0000:03:00.0",
        "0x1002",
        "0x744c",
        "0x030000",
        Some("amdgpu"),
    );
    root.pci(
        "0000:03:00.1",
        "0x1002",
        "0xab30",
        "0x040300",
        Some("snd_hda_intel"),
    );
    root.pci(
        "0000:0d:00.0",
        "0x1002",
        "0x164e",
        "0x030000",
        Some("amdgpu"),
    );
    root.pci(
        "0000:01:00.0",
        "0x10de",
        "0x2684",
        "0x030000",
        Some("nvidia"),
    );
    root.node(0, CPU, 64 << 30);
    root.node(
        1,
        "cpu_cores_count 0\nsimd_count 192\nwave_front_size 32\ngfx_target_version 110000\nvendor_id 4098\n\
         device_id 29772\nlocation_id 768\ndomain 0\ndrm_render_minor 128\n",
        24 << 30,
    );
    root.node(
        2,
        "simd_count 4\nwave_front_size 32\ngfx_target_version 100306\nvendor_id 4098\ndevice_id 5710\n\
         location_id 3328\ndomain 0\ndrm_render_minor 129\n",
        512 << 20,
    );
    root.write("dev/kfd", "");
}

#[test]
fn a_workstation_lists_its_amd_gpus_and_nothing_else() {
    let root = Root::new("workstation");
    workstation(&root);
    let topology = root.read();
    assert_eq!(topology.gpus.len(), 2, "{topology:?}");
    assert_eq!(
        topology.gpus[0],
        KernelGpu {
            pci_id: "0000:03:00.0".into(),
            device_id: 0x744c,
            name: Some("AMD Radeon RX 7900 XT/7900 XTX/7900 GRE".into()),
            arch: Some("gfx1100".into()),
            simd_count: Some(192),
            wave_size: Some(32),
            memory_bytes: Some(24 << 30),
            obstacles: vec![],
        }
    );
    assert_eq!(topology.gpus[1].arch.as_deref(), Some("gfx1036"));
    assert_eq!(topology.gpus[1].display_name(), "AMD GPU (gfx1036)");
}

#[test]
fn target_versions_become_processor_names() {
    for (packed, arch) in [
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
    ] {
        let root = Root::new(arch);
        root.node(
            1,
            &format!("simd_count 4\ngfx_target_version {packed}\nlocation_id 768\n"),
            1,
        );
        let gpus = root.read().gpus;
        assert_eq!(gpus[0].arch.as_deref(), Some(arch));
        assert!(is_supported_arch(arch));
    }
}

#[test]
fn a_name_that_the_card_carries_wins() {
    let root = Root::new("product-name");
    root.pci(
        "0000:c1:00.0",
        "0x1002",
        "0x74a1",
        "0x120000",
        Some("amdgpu"),
    );
    root.write(
        "sys/bus/pci/devices/0000:c1:00.0/product_name",
        "AMD Instinct MI300X OAM\n",
    );
    let name = root.read().gpus[0].name.clone();
    assert_eq!(name.as_deref(), Some("AMD Instinct MI300X OAM"));
}

#[test]
fn a_card_is_found_through_drm_alone() {
    let root = Root::new("drm");
    let folder = "sys/class/drm/card1/device";
    root.write(&format!("{folder}/vendor"), "0x1002\n");
    root.write(&format!("{folder}/device"), "0x73bf\n");
    root.write(
        &format!("{folder}/uevent"),
        "DRIVER=amdgpu\nPCI_ID=1002:73BF\nPCI_SLOT_NAME=0000:2d:00.0\n",
    );
    root.write(&format!("{folder}/mem_info_vram_total"), "17163091968\n");
    let gpu = &root.read().gpus[0];
    assert_eq!(gpu.pci_id, "0000:2d:00.0");
    assert_eq!(gpu.memory_bytes, Some(17_163_091_968));
}

#[test]
fn a_missing_or_foreign_driver_is_named() {
    let root = Root::new("driver");
    root.pci("0000:03:00.0", "0x1002", "0x744c", "0x030000", None);
    root.pci(
        "0000:04:00.0",
        "0x1002",
        "0x744c",
        "0x030000",
        Some("vfio-pci"),
    );
    let topology = root.read();
    assert_eq!(
        topology.gpus[0].obstacles,
        [Obstacle::NoDriver { bound: None }]
    );
    let bound = Some("vfio-pci".to_string());
    assert_eq!(topology.gpus[1].obstacles, [Obstacle::NoDriver { bound }]);
    let why = topology.why_no_device();
    assert!(
        why.contains("modprobe amdgpu") && why.contains("vfio-pci"),
        "{why}"
    );
}

#[test]
fn missing_kfd_and_a_card_without_compute_node_are_named() {
    let root = Root::new("kfd");
    workstation(&root);
    fs::remove_file(root.0.join("dev/kfd")).unwrap();
    assert_eq!(root.read().gpus[0].obstacles, [Obstacle::NoKfd]);
    root.write("dev/kfd", "");
    fs::remove_dir_all(root.0.join("sys/class/kfd/kfd/topology/nodes/1")).unwrap();
    assert_eq!(root.read().gpus[0].obstacles, [Obstacle::NotComputeNode]);
}

#[test]
fn missing_permission_names_the_file_and_the_groups() {
    let root = Root::new("permission");
    workstation(&root);
    let denied = |path: &Path| match path.ends_with("dev/kfd") {
        true => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
        false => Ok(()),
    };
    let topology = Topology::read_from(&root.0, &denied);
    let path = root.0.join("dev/kfd");
    assert_eq!(
        topology.gpus[0].obstacles,
        [Obstacle::NoPermission { path }]
    );
    let why = topology.why_no_device();
    assert!(why.contains("render") && why.contains("video"), "{why}");
}

#[test]
fn an_old_processor_is_listed_as_unsupported() {
    let root = Root::new("unsupported");
    root.node(
        1,
        "simd_count 144\ngfx_target_version 80003\nlocation_id 768\n",
        8 << 30,
    );
    root.write("dev/kfd", "");
    let arch = "gfx803".to_string();
    assert_eq!(
        root.read().gpus[0].obstacles,
        [Obstacle::UnsupportedArch { arch }]
    );
}

#[test]
fn an_empty_or_broken_tree_lists_nothing() {
    let root = Root::new("broken");
    assert_eq!(root.read(), Topology::default());
    root.node(1, "simd_count many\nnonsense\n\n", 0);
    root.pci("0000:03:00.0", "", "", "", None);
    assert_eq!(root.read(), Topology::default());
    assert!(root.read().why_no_device().contains("no AMD GPU"));
}

#[test]
fn partitions_of_a_gpu_are_told_by_the_first() {
    let root = Root::new("partitions");
    // A folder is read in any order, and 10 goes before 9 as a name.
    for (index, bytes) in [(10, 1 << 30), (9, 2 << 30), (11, 3 << 30)] {
        root.node(
            index,
            "simd_count 4\ngfx_target_version 90402\nlocation_id 256\ndomain 0\n",
            bytes,
        );
    }
    let gpus = root.read().gpus;
    let told: Vec<_> = (gpus
        .iter()
        .map(|gpu| (gpu.pci_id.as_str(), gpu.memory_bytes)))
    .collect();
    assert_eq!(told, [("0000:01:00.0", Some(2 << 30))]);
}

#[test]
fn a_node_tells_what_driving_a_gpu_needs() {
    let root = Root::new("node");
    root.node(0, CPU, 64 << 30);
    for (index, gpu_id) in [(10u32, 4242u32), (2, 51_000)] {
        root.node(
            index,
            "simd_count 192\nsimd_per_cu 2\narray_count 12\nsimd_arrays_per_engine 2\ncu_per_simd_array 8\n\
             wave_front_size 32\nmax_waves_per_simd 16\nmax_slots_scratch_cu 32\nlds_size_in_kb 64\n\
             gfx_target_version 110000\nlocation_id 768\ndomain 2\ndrm_render_minor 129\nnum_sdma_engines 2\n\
             num_sdma_xgmi_engines 0\nnum_sdma_queues_per_engine 8\nnum_cp_queues 8\ncwsr_size 23\nctl_stack_size 5\n\
             eop_buffer_size 4096\ncapability 2887221888\ndebug_prop 1511\nhive_id 18446744073709551615\n",
            24 << 30,
        );
        let folder = format!("sys/class/kfd/kfd/topology/nodes/{index}");
        root.write(&format!("{folder}/gpu_id"), &format!("{gpu_id}\n"));
        let other = 12 - index;
        let link = format!("type 2\nnode_to {other}\nweight 40\nflags 1\n");
        root.write(&format!("{folder}/p2p_links/0/properties"), &link);
    }
    // Of another container: its number cannot be read.
    root.node(3, "simd_count 4\ngfx_target_version 110000\n", 1);
    let nodes = Node::read_from(&root.0);
    let ids: Vec<_> = nodes.iter().map(|node| (node.index, node.gpu_id)).collect();
    assert_eq!(ids, [(2, 51_000), (10, 4242)]);
    let node = &nodes[1];
    assert_eq!(
        (node.arch.as_str(), node.pci_id.as_str(), node.render_minor),
        ("gfx1100", "0002:03:00.0", 129)
    );
    assert_eq!((node.cu_count(), node.xcc_count), (96, 1));
    assert_eq!(
        (node.array_count, node.arrays_per_engine, node.cu_per_array),
        (12, 2, 8)
    );
    assert_eq!((node.lds_bytes, node.max_waves_per_simd), (64 << 10, 16));
    assert_eq!((node.sdma_engines, node.sdma_queues_per_engine), (2, 8));
    assert_eq!(
        (node.cwsr_bytes, node.control_stack_bytes, node.eop_bytes),
        (23, 5, 4096)
    );
    assert_eq!((node.capability, node.hive), (2_887_221_888, u64::MAX));
    assert_eq!(node.memory_bytes, 24 << 30);
    assert_eq!(node.visible_bytes(), 24 << 30);
    assert_eq!(node.links[0].gpu.as_deref(), Some("0002:03:00.0"));
}

#[test]
fn memory_behind_a_small_window_is_not_visible() {
    let root = Root::new("window");
    root.node(1, "simd_count 4\n", 16 << 30);
    let folder = "sys/class/kfd/kfd/topology/nodes/1";
    root.write(&format!("{folder}/gpu_id"), "7\n");
    root.write(
        &format!("{folder}/mem_banks/0/properties"),
        "heap_type 2\nsize_in_bytes 17179869184\n",
    );
    let node = &Node::read_from(&root.0)[0];
    assert_eq!((node.memory_bytes, node.visible_bytes()), (16 << 30, 0));
    assert_eq!(node.cu_count(), 0);
}

#[test]
fn screens_and_consoles_are_of_one_card() {
    let root = Root::new("displays");
    for (card, address, console) in [
        ("card0", "0000:03:00.0", "fb0"),
        ("card1", "0000:0d:00.0", "fb1"),
    ] {
        for folder in [format!("drm/{card}"), format!("graphics/{console}")] {
            root.write(
                &format!("sys/class/{folder}/device/uevent"),
                &format!("DRIVER=amdgpu\nPCI_SLOT_NAME={address}\n"),
            );
        }
    }
    for (connector, status) in [
        ("card0-DP-1", "connected"),
        ("card0-HDMI-A-1", "disconnected"),
        ("card1-DP-4", "disconnected"),
        ("card10-DP-5", "connected"),
    ] {
        root.write(
            &format!("sys/class/drm/{connector}/status"),
            &format!("{status}\n"),
        );
    }
    assert_eq!(displays(&root.0, "0000:03:00.0"), ["DP-1", "fb0"]);
    fs::remove_dir_all(root.0.join("sys/class/graphics/fb1")).unwrap();
    assert_eq!(displays(&root.0, "0000:0d:00.0"), Vec::<String>::new());
}
