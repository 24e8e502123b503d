//! The kernel driver's view of GPUs, on trees as the driver lays them out.

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

/// Two MI300X side by side: xGMI between them, PCIe to the processor behind a bridge.
fn server(root: &Root) {
    root.node(0, CPU, 512 << 30);
    for (node, bus, other) in [(1u32, 0x03u64, 2), (2, 0x23, 1)] {
        let address = format!("0000:{bus:02x}:00.0");
        // The bus shows links to where devices really are: below their bridges.
        let bridge = format!("sys/devices/pci0000:00/0000:{:02x}:00.0", bus - 2);
        let device = format!("{bridge}/{address}");
        for (folder, speed, width) in [
            (&device, "32.0 GT/s PCIe", 16),
            (&bridge, "16.0 GT/s PCIe", 8),
        ] {
            root.write(
                &format!("{folder}/current_link_speed"),
                &format!("{speed}\n"),
            );
            root.write(
                &format!("{folder}/current_link_width"),
                &format!("{width}\n"),
            );
            root.write(&format!("{folder}/max_link_speed"), "32.0 GT/s PCIe\n");
            root.write(&format!("{folder}/max_link_width"), "16\n");
        }
        for (file, text) in [
            ("vendor", "0x1002"),
            ("device", "0x74a1"),
            ("class", "0x120000"),
            ("revision", "0x01"),
            ("mem_info_vram_total", "206141652992"),
            ("mem_info_vram_used", "296153088"),
            ("mem_info_vis_vram_total", "206141652992"),
            ("mem_info_gtt_total", "270582939648"),
            ("fw_version/mec_fw_version", "0x00000095"),
            ("fw_version/uvd_fw_version", "0x00000000"),
            ("vbios_version", "113-M3000100-102"),
            ("current_compute_partition", "SPX"),
        ] {
            root.write(&format!("{device}/{file}"), &format!("{text}\n"));
        }
        let driver = root.0.join(&device).join("driver");
        symlink("../../../../bus/pci/drivers/amdgpu", driver).unwrap();
        let bus_folder = root.0.join("sys/bus/pci/devices");
        fs::create_dir_all(&bus_folder).unwrap();
        symlink(root.0.join(&device), bus_folder.join(&address)).unwrap();
        root.node(
            node,
            &format!(
                "simd_count 1216\nwave_front_size 64\ngfx_target_version 90402\nlocation_id {}\ndomain 0\n\
                 drm_render_minor {}\nmax_engine_clk_fcompute 2100\n",
                bus << 8,
                127 + node
            ),
            192 << 30,
        );
        let folder = format!("sys/class/kfd/kfd/topology/nodes/{node}");
        for (link, text) in [
            ("io_links/0", "type 2\nnode_to 0\nweight 20\nmin_bandwidth 312\nmax_bandwidth 64000\nflags 1\n".to_string()),
            ("io_links/1", format!("type 11\nnode_to {other}\nweight 15\nmin_bandwidth 50000\nmax_bandwidth 50000\nflags 1\n")),
            ("p2p_links/0", format!("type 2\nnode_to {other}\nweight 40\nmin_bandwidth 0\nmax_bandwidth 0\nflags 17\n")),
            ("caches/0", "level 1\nsize 32\ntype 9\n".to_string()),
            ("caches/1", "level 1\nsize 32\ntype 9\n".to_string()),
            ("caches/2", "level 2\nsize 4096\ntype 9\n".to_string()),
        ] {
            root.write(&format!("{folder}/{link}/properties"), &text);
        }
    }
    root.write("dev/kfd", "");
}

#[test]
fn links_caches_memory_slot_and_firmware_are_read() {
    let root = Root::new("server");
    server(&root);
    let gpus = root.read().gpus;
    assert_eq!(gpus.len(), 2, "{gpus:?}");
    let details = Details::read_from(&root.0, &gpus[0].pci_id);
    assert_eq!(
        (details.node, details.revision, details.max_clock),
        (Some(1), Some(1), Some(2100))
    );
    let kinds: Vec<_> = details
        .links
        .iter()
        .map(|link| (link.node, link.kind, link.peer_dma))
        .collect();
    assert_eq!(
        kinds,
        [
            (0, LinkKind::Pcie, true),
            (2, LinkKind::Xgmi, true),
            (2, LinkKind::Pcie, false)
        ]
    );
    let xgmi = details.link_to(&gpus[1].pci_id).unwrap();
    assert_eq!(
        (xgmi.kind, xgmi.weight, xgmi.max_bandwidth),
        (LinkKind::Xgmi, 15, 50_000)
    );
    assert_eq!(details.links[0].gpu, None);
    let caches: Vec<_> = details
        .caches
        .iter()
        .map(|c| (c.level, c.data, c.instructions, c.bytes, c.count))
        .collect();
    assert_eq!(
        caches,
        [(1, true, false, 32 << 10, 2), (2, true, false, 4 << 20, 1)]
    );
    let bank = &details.banks[0];
    assert_eq!(
        (bank.bytes, bank.host_visible, bank.width, bank.clock),
        (192 << 30, true, 384, 1249)
    );
    let vram = details.vram.unwrap();
    assert_eq!((vram.total, vram.used), (206_141_652_992, 296_153_088));
    assert_eq!(details.visible_vram, Some(vram.total));
    assert_eq!(details.gtt.unwrap().total, 270_582_939_648);
    assert_eq!(
        details.firmware.into_iter().collect::<Vec<_>>(),
        [("mec".to_string(), "0x00000095".to_string())]
    );
    assert_eq!(details.vbios.as_deref(), Some("113-M3000100-102"));
    assert_eq!(details.partition.as_deref(), Some("SPX"));
}

#[test]
fn the_slowest_link_on_the_way_counts() {
    let root = Root::new("slot");
    server(&root);
    let details = Details::read_from(&root.0, "0000:23:00.0");
    let links: Vec<_> = details
        .pcie
        .iter()
        .map(|link| (link.pci_id.as_str(), link.width))
        .collect();
    assert_eq!(links, [("0000:23:00.0", 16), ("0000:21:00.0", 8)]);
    let slowest = details.slowest_link().unwrap();
    assert_eq!((slowest.speed, slowest.width), (16.0, 8));
    // 16 GT/s x 8 lanes x 128/130 / 8 bits.
    assert!(
        (slowest.bandwidth() / 15.75e9 - 1.0).abs() < 1e-3,
        "{}",
        slowest.bandwidth()
    );
    assert!((details.best_bandwidth().unwrap() / 63.0e9 - 1.0).abs() < 1e-3);
}

/// Cards of a machine at 01:00.0, 02:00.0 and so on, with the numbers of their hives, and links between them: from, to,
/// type, weight, flags.
fn joined(root: &Root, hives: &[u64], links: &[(u32, u32, u32, u32, u32)]) -> Vec<String> {
    root.node(0, CPU, 64 << 30);
    root.write("dev/kfd", "");
    let address = |card: usize| format!("0000:{:02x}:00.0", card + 1);
    for (card, hive) in hives.iter().enumerate() {
        root.pci(
            &address(card),
            "0x1002",
            "0x74a1",
            "0x120000",
            Some("amdgpu"),
        );
        let folder = format!("sys/bus/pci/devices/{}", address(card));
        root.write(&format!("{folder}/numa_node"), &format!("{}\n", card % 2));
        let node = card as u32 + 1;
        let location = u64::from(node) << 8;
        root.node(
            node,
            &format!(
                "simd_count 4\ngfx_target_version 90402\nlocation_id {location}\nhive_id {hive}\n"
            ),
            64 << 30,
        );
        let slot = format!("sys/class/kfd/kfd/topology/nodes/{node}/io_links/0/properties");
        root.write(&slot, "type 2\nnode_to 0\nweight 20\nflags 1\n");
    }
    for (at, (from, to, kind, weight, flags)) in links.iter().enumerate() {
        root.write(
            &format!(
                "sys/class/kfd/kfd/topology/nodes/{}/p2p_links/{at}/properties",
                from + 1
            ),
            &format!(
                "type {kind}\nnode_to {}\nweight {weight}\nflags {flags}\n",
                to + 1
            ),
        );
    }
    (0..hives.len()).map(address).collect()
}

/// The same link in both directions.
fn both(a: u32, b: u32, kind: u32, weight: u32) -> [(u32, u32, u32, u32, u32); 2] {
    [(a, b, kind, weight, 1), (b, a, kind, weight, 1)]
}

fn fabric(root: &Root, gpus: &[String]) -> Fabric {
    Fabric::read_from(&root.0, gpus.iter().map(String::as_str))
}

#[test]
fn gpus_of_a_hive_stand_together() {
    let root = Root::new("hives");
    let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
    let links: Vec<_> = (pairs.iter())
        .flat_map(|&(a, b)| match (b - a) % 2 {
            0 => both(a, b, 11, 15),
            _ => both(a, b, 2, 40),
        })
        .collect();
    let gpus = joined(&root, &[7, 9, 7, 9], &links);
    let fabric = fabric(&root, &gpus);
    assert_eq!(fabric.gpus[2].hive, Some(7));
    assert_eq!(fabric.gpus[2].numa, Some(0));
    assert_eq!(fabric.order(), [0, 2, 1, 3]);
    assert_eq!(fabric.reach(0, 3), Reach::Both);
    assert_eq!(fabric.link(0, 2).unwrap().kind, LinkKind::Xgmi);
    assert_eq!(fabric.traps(), []);
    assert_eq!(
        fabric.table(&["a", "b", "c", "d"])[..3],
        [
            "   a        b        c        d",
            "a  -        PCIe 40  xGMI 15  PCIe 40",
            "b  PCIe 40  -        PCIe 40  xGMI 15",
        ]
    );
    // What was asked for only, and in its order.
    let some = Fabric::read_from(&root.0, [&*gpus[3], &*gpus[0], &*gpus[1]]);
    assert_eq!(some.order(), [0, 2, 1]);
}

#[test]
fn a_ring_of_xgmi_is_followed() {
    let root = Root::new("ring");
    // 0 - 3 - 1 - 2 - 0, and two hops across.
    let mut links = Vec::new();
    for (a, b) in [(0, 3), (3, 1), (1, 2), (2, 0)] {
        links.extend(both(a, b, 11, 15));
    }
    for (a, b) in [(0, 1), (2, 3)] {
        links.extend(both(a, b, 11, 30));
    }
    let gpus = joined(&root, &[5; 4], &links);
    assert_eq!(fabric(&root, &gpus).order(), [0, 2, 1, 3]);
}

#[test]
fn what_is_in_the_way_of_several_gpus_is_named() {
    let root = Root::new("traps");
    let no_peer = 1 << 4 | 1;
    let mut links = vec![(0, 1, 2, 40, 1), (1, 0, 2, 40, no_peer)];
    links.extend(both(1, 2, 2, 40));
    let gpus = joined(&root, &[0; 3], &links);
    let folder = format!("sys/bus/pci/devices/{}", gpus[2]);
    root.write(&format!("{folder}/mem_info_vram_total"), "68719476736\n");
    root.write(&format!("{folder}/mem_info_vis_vram_total"), "268435456\n");
    root.write(
        "sys/class/kfd/kfd/topology/nodes/1/io_links/0/properties",
        "type 2\nnode_to 0\nweight 20\nflags 13\n",
    );
    root.write("sys/kernel/iommu_groups/3/type", "DMA-FQ\n");
    let group = root.0.join("sys/bus/pci/devices").join(&gpus[0]);
    symlink(
        root.0.join("sys/kernel/iommu_groups/3"),
        group.join("iommu_group"),
    )
    .unwrap();
    let fabric = fabric(&root, &gpus);
    let codes: Vec<&str> = fabric.traps().iter().map(Trap::code).collect();
    assert_eq!(
        codes,
        ["iommu", "atomics", "bar", "one_way", "no_peer_access"]
    );
    assert_eq!(fabric.joint(1, 0), "PCIe 40 (no access)");
    assert_eq!(fabric.joint(0, 2), "none");
    let text: Vec<String> = fabric.traps().iter().map(ToString::to_string).collect();
    assert!(text[2].contains("256 MiB of 65536 MiB"), "{}", text[2]);
    assert!(
        text[3].starts_with("0000:01:00.0 reaches the memory of 0000:02:00.0"),
        "{}",
        text[3]
    );
    assert!(
        text[4].starts_with("0000:01:00.0 and 0000:03:00.0 do not"),
        "{}",
        text[4]
    );
    assert!(fabric.traps()[0].advice().contains("iommu=pt"));
    // Alone, none of it matters.
    assert_eq!(Fabric::read_from(&root.0, [&*gpus[2]]).traps(), []);
}

#[test]
fn gpus_of_which_none_reaches_another_are_told_together() {
    let root = Root::new("apart");
    let gpus = joined(&root, &[0; 3], &[]);
    assert_eq!(
        fabric(&root, &gpus).traps(),
        [Trap::Apart { gpus: gpus.clone() }]
    );
    assert_eq!(fabric(&root, &gpus).reach(0, 2), Reach::Neither);
    // GPUs that the kernel does not know are not judged.
    let unknown = Fabric::read_from(&root.0, ["0000:f1:00.0", "0000:f2:00.0"]);
    assert_eq!(
        (unknown.reach(0, 1), unknown.order()),
        (Reach::Unknown, vec![0, 1])
    );
    assert_eq!(unknown.traps(), []);
}

#[test]
fn a_bridge_that_redirects_matters_where_pcie_joins() {
    let redirecting = || {
        let mut config = vec![0u8; 4096];
        config[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        config[0x106] = 0x1d;
        config
    };
    for (kind, traps) in [(2, 1), (11, 0)] {
        let root = Root::new(&format!("acs-{kind}"));
        let bridge = root.0.join("sys/devices/pci0000:00/0000:00:01.1");
        fs::create_dir_all(&bridge).unwrap();
        fs::write(bridge.join("config"), redirecting()).unwrap();
        let gpus = joined(&root, &[0; 2], &both(0, 1, kind, 15));
        for gpu in &gpus {
            // The bus shows where devices really are.
            let (shown, real) = (
                root.0.join("sys/bus/pci/devices").join(gpu),
                bridge.join(gpu),
            );
            fs::rename(&shown, &real).unwrap();
            symlink(&real, &shown).unwrap();
        }
        let found = fabric(&root, &gpus).traps();
        assert_eq!(found.len(), traps, "{found:?}");
        assert!(found
            .iter()
            .all(|trap| trap.to_string().contains("0000:00:01.1")));
    }
}

#[test]
fn the_iommu_is_judged_by_the_gpus_groups_before_the_command_line() {
    let root = Root::new("iommu");
    let gpu = "0000:01:00.0";
    let read = || Iommu::read_from(&root.0, [gpu]);
    assert_eq!(read(), Iommu::Off);
    root.write("sys/class/iommu/ivhd0/x", "");
    root.write("proc/cmdline", "quiet\n");
    assert_eq!(read(), Iommu::Translating);
    root.write("proc/cmdline", "quiet iommu=pt\n");
    assert_eq!(read(), Iommu::Passthrough);
    root.write(
        &format!("sys/bus/pci/devices/{gpu}/iommu_group/type"),
        "DMA\n",
    );
    assert_eq!(read(), Iommu::Translating);
    root.write("proc/cmdline", "quiet\n");
    root.write(
        &format!("sys/bus/pci/devices/{gpu}/iommu_group/type"),
        "identity\n",
    );
    assert_eq!(read(), Iommu::Passthrough);
}

#[test]
fn what_the_kernel_does_not_tell_is_left_out() {
    let root = Root::new("bare");
    workstation(&root);
    let details = Details::read_from(&root.0, "0000:03:00.0");
    assert!(details.links.is_empty() && details.pcie.is_empty() && details.vram.is_none());
    assert_eq!(
        Details::read_from(&root.0, "0000:ff:00.0"),
        Details::default()
    );
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
