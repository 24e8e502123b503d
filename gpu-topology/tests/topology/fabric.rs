//! How GPUs reach one another.

use super::*;

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
