//! `hipDeviceProp_tR0600` of a GPU.

use candle_kfd::generation::{Family, MAX_BLOCK};
use candle_kfd::Gpu;
use gpu_topology::{Card, Details};

/// `sizeof(hipDeviceProp_tR0600)`.
pub(crate) const BYTES: usize = 1472;
/// Bytes of each of its strings.
const STRING: usize = 256;
/// Blocks of a dimension at most: a dispatch counts threads in 32 bits.
const MOST_BLOCKS: i32 = i32::MAX / MAX_BLOCK as i32;

/// What the kernel says of a GPU, where HIP's struct has it. Numbers that the kernel does not tell are 0.
pub(crate) fn image(gpu: &Gpu) -> [u8; BYTES] {
    let node = gpu.node();
    let root = gpu.kfd().driver().root();
    let details = Details::read_from(root, &node.pci_id);
    let mut image = [0u8; BYTES];
    let mut set = |offset: usize, bytes: &[u8]| {
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    let mut text = |offset: usize, text: &str| {
        let end = text.len().min(STRING - 1);
        set(offset, &text.as_bytes()[..end]);
    };
    match Card::of(node.device_id) {
        Some(card) => text(0, card.name),
        None => text(0, &format!("AMD GPU {}", node.arch)),
    }
    text(1160, &node.arch); // gcnArchName
    let lds = gpu.generation().lds_bytes as usize;
    for (offset, value) in [
        (288, node.memory_bytes as usize), // totalGlobalMem
        (296, lds),                        // sharedMemPerBlock
        (312, i32::MAX as usize),          // memPitch
        (640, lds),                        // sharedMemPerMultiprocessor
        (696, lds),                        // sharedMemPerBlockOptin
        (1416, lds),                       // maxSharedMemoryPerMultiProcessor
    ] {
        set(offset, &value.to_ne_bytes());
    }
    let l2 = details.caches.iter().filter(|cache| cache.level == 2);
    let l2 = l2.map(|cache| cache.bytes).max().unwrap_or(0);
    let banks = || node.banks.iter();
    let clock = banks().map(|bank| bank.clock).max().unwrap_or(0);
    let width = banks().map(|bank| bank.width).max().unwrap_or(0);
    let threads = MAX_BLOCK as i32;
    let [domain, bus, device] = address(&node.pci_id);
    let (major, minor) = capability(&node.arch);
    let int = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
    for (offset, value) in [
        (308, node.wave_size as i32), // warpSize
        (320, threads),               // maxThreadsPerBlock
        (324, threads),               // maxThreadsDim
        (328, threads),
        (332, threads),
        (336, MOST_BLOCKS), // maxGridSize
        (340, MOST_BLOCKS),
        (344, MOST_BLOCKS),
        (348, int(u64::from(node.max_clock) * 1000)), // clockRate, kHz
        (360, major),
        (364, minor),
        (388, units(gpu)),                        // multiProcessorCount
        (396, i32::from(node.memory_bytes == 0)), // integrated
        (400, 1),                                 // canMapHostMemory
        (576, 1),                                 // concurrentKernels
        (584, bus),                               // pciBusID
        (588, device),                            // pciDeviceID
        (592, domain),                            // pciDomainID
        (604, 1),                                 // unifiedAddressing
        (608, int(clock.saturating_mul(1000))),   // memoryClockRate, kHz
        (612, int(width)),                        // memoryBusWidth
        (616, int(l2)),                           // l2CacheSize
        (
            624, // maxThreadsPerMultiProcessor
            (node.wave_size * node.max_waves_per_simd * node.simd_per_cu) as i32,
        ),
    ] {
        set(offset, &value.to_ne_bytes());
    }
    image
}

/// Compute units as HIP counts them: on RDNA, work-group processors of two.
fn units(gpu: &Gpu) -> i32 {
    let units = gpu.node().cu_count() as i32;
    match gpu.generation().family {
        Family::Gfx9 => units,
        _ => units / 2,
    }
}

/// Domain, bus and device of a PCI address.
fn address(pci_id: &str) -> [i32; 3] {
    let mut parts = pci_id.split([':', '.']);
    [(); 3].map(|()| {
        let part = parts.next().unwrap_or_default();
        i32::from_str_radix(part, 16).unwrap_or(0)
    })
}

/// The first two numbers of a processor's name: 11 and 0 of gfx1100, 9 and 4 of gfx942.
fn capability(arch: &str) -> (i32, i32) {
    let digits = arch.strip_prefix("gfx").unwrap_or_default();
    let Some(split) = digits.len().checked_sub(2) else {
        return (0, 0);
    };
    let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
    (
        number(digits.get(..split)),
        number(digits.get(split..split + 1)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_in_them() {
        assert_eq!(capability("gfx1100"), (11, 0));
        assert_eq!(capability("gfx942"), (9, 4));
        assert_eq!(capability("gfx90a"), (9, 0));
        assert_eq!(capability("gfx1151"), (11, 5));
        assert_eq!(capability("gfx"), (0, 0));
        assert_eq!(capability(""), (0, 0));
        assert_eq!(address("0001:c3:1f.0"), [1, 0xc3, 0x1f]);
        assert_eq!(address(""), [0; 3]);
    }
}
