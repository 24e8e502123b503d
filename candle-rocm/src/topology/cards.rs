//! What cards are called.

/// Names of common cards by PCI device number, for those that do not carry their own.
pub(super) fn card_name(device_id: u32) -> Option<&'static str> {
    Some(match device_id {
        0x66a1 => "AMD Instinct MI50/MI60",
        0x738c => "AMD Instinct MI100",
        0x7408 | 0x740c => "AMD Instinct MI250/MI250X",
        0x740f => "AMD Instinct MI210",
        0x74a0 => "AMD Instinct MI300A",
        0x74a1 => "AMD Instinct MI300X",
        0x74a5 => "AMD Instinct MI325X",
        0x75a0 => "AMD Instinct MI350X",
        0x75a3 => "AMD Instinct MI355X",
        0x73a5 => "AMD Radeon RX 6950 XT",
        0x73bf => "AMD Radeon RX 6800/6800 XT/6900 XT",
        0x73df => "AMD Radeon RX 6700/6700 XT/6750 XT",
        0x73ff => "AMD Radeon RX 6600/6600 XT/6650 XT",
        0x744c => "AMD Radeon RX 7900 XT/7900 XTX/7900 GRE",
        0x7448 => "AMD Radeon Pro W7900",
        0x745e => "AMD Radeon Pro W7800",
        0x7470 => "AMD Radeon Pro W7700",
        0x747e => "AMD Radeon RX 7700 XT/7800 XT",
        0x7480 => "AMD Radeon RX 7600",
        0x7550 => "AMD Radeon RX 9070/9070 XT",
        0x7551 => "AMD Radeon AI PRO R9700",
        0x7590 => "AMD Radeon RX 9060 XT",
        0x150e => "AMD Radeon 880M/890M",
        0x1586 => "AMD Radeon 8050S/8060S",
        0x15bf => "AMD Radeon 740M/760M/780M",
        _ => return None,
    })
}
