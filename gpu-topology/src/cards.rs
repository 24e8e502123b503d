//! What cards are called, and what their data sheets promise.
//!
//! Figures are those of AMD's product pages (<https://www.amd.com/en/products/specifications.html>), dense and at the
//! highest clock; of a GPU with two dies, of one. `scripts/roofline` reads this table, too: a row stays one line.

/// A card, or several with one PCI device number; then the fastest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// PCI device numbers.
    pub device_ids: &'static [u32],
    /// Marketing name.
    pub name: &'static str,
    /// Memory bandwidth, in GB/s.
    pub bandwidth: f64,
    /// Operations on f32, in TFLOP/s: by matrix instructions where there are some for it, else by vector instructions.
    pub f32: f64,
    /// Operations on f16, likewise.
    pub f16: f64,
    /// Operations on bf16, likewise.
    pub bf16: f64,
}

const fn card(
    device_ids: &'static [u32],
    name: &'static str,
    bandwidth: f64,
    flops: [f64; 3],
) -> Card {
    let [f32, f16, bf16] = flops;
    Card {
        device_ids,
        name,
        bandwidth,
        f32,
        f16,
        bf16,
    }
}

/// Common cards.
#[rustfmt::skip]
pub const CARDS: &[Card] = &[
    card(&[0x66a1], "AMD Instinct MI50/MI60", 1024.0, [14.7, 29.5, 14.7]),
    card(&[0x738c], "AMD Instinct MI100", 1228.8, [46.1, 184.6, 92.3]),
    card(&[0x7408, 0x740c], "AMD Instinct MI250/MI250X", 1638.4, [47.9, 191.5, 191.5]),
    card(&[0x740f], "AMD Instinct MI210", 1638.4, [45.3, 181.0, 181.0]),
    card(&[0x74a0], "AMD Instinct MI300A", 5300.0, [122.6, 980.6, 980.6]),
    card(&[0x74a1], "AMD Instinct MI300X", 5300.0, [163.4, 1307.4, 1307.4]),
    card(&[0x74a5], "AMD Instinct MI325X", 6000.0, [163.4, 1307.4, 1307.4]),
    card(&[0x75a0], "AMD Instinct MI350X", 8000.0, [144.2, 2300.0, 2300.0]),
    card(&[0x75a3], "AMD Instinct MI355X", 8000.0, [157.3, 2500.0, 2500.0]),
    card(&[0x73a5], "AMD Radeon RX 6950 XT", 576.0, [23.65, 47.31, 23.65]),
    card(&[0x73bf], "AMD Radeon RX 6800/6800 XT/6900 XT", 512.0, [23.04, 46.08, 23.04]),
    card(&[0x73df], "AMD Radeon RX 6700/6700 XT/6750 XT", 432.0, [13.31, 26.62, 13.31]),
    card(&[0x73ff], "AMD Radeon RX 6600/6600 XT/6650 XT", 280.0, [10.79, 21.58, 10.79]),
    card(&[0x744c], "AMD Radeon RX 7900 XT/7900 XTX/7900 GRE", 960.0, [61.4, 122.8, 122.8]),
    card(&[0x7448], "AMD Radeon Pro W7900", 864.0, [61.3, 122.6, 122.6]),
    card(&[0x745e], "AMD Radeon Pro W7800", 576.0, [45.2, 90.5, 90.5]),
    card(&[0x7470], "AMD Radeon Pro W7700", 576.0, [28.3, 56.5, 56.5]),
    card(&[0x747e], "AMD Radeon RX 7700 XT/7800 XT", 624.0, [37.3, 74.6, 74.6]),
    card(&[0x7480], "AMD Radeon RX 7600", 288.0, [21.75, 43.5, 43.5]),
    card(&[0x7550], "AMD Radeon RX 9070/9070 XT", 640.0, [48.7, 195.0, 195.0]),
    card(&[0x7551], "AMD Radeon AI PRO R9700", 640.0, [47.8, 191.0, 191.0]),
    card(&[0x7590], "AMD Radeon RX 9060 XT", 320.0, [25.6, 103.0, 103.0]),
    card(&[0x150e], "AMD Radeon 880M/890M", 120.0, [11.9, 23.8, 23.8]),
    card(&[0x1586], "AMD Radeon 8050S/8060S", 256.0, [29.7, 59.4, 59.4]),
    card(&[0x15bf], "AMD Radeon 740M/760M/780M", 120.0, [8.3, 16.6, 16.6]),
];

impl Card {
    /// The card with a PCI device number, if it is a common one.
    pub fn of(device_id: u32) -> Option<&'static Card> {
        (CARDS.iter()).find(|card| card.device_ids.contains(&device_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_one_card_each_and_figures_are_plausible() {
        let mut ids: Vec<u32> = (CARDS.iter())
            .flat_map(|card| card.device_ids)
            .copied()
            .collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        for card in CARDS {
            assert!((100.0..10_000.0).contains(&card.bandwidth), "{}", card.name);
            assert!(
                card.f16 >= card.bf16 && card.bf16 >= card.f32,
                "{}",
                card.name
            );
            // Between 10 and 500 operations for each byte.
            assert!(
                (0.01..0.5).contains(&(card.f16 / card.bandwidth)),
                "{}",
                card.name
            );
        }
        assert_eq!(Card::of(0x740c), Card::of(0x7408));
        assert_eq!(Card::of(0x164e), None);
    }
}
