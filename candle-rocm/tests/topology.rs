//! The kernel driver's view of GPUs, on trees as the driver lays them out.

use candle_rocm::topology::{is_supported_arch, KernelGpu, Obstacle, Topology};
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
