//! Links, caches, slots, memory and firmware.

use super::*;

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
