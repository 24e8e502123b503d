//! Temperature, power and clocks of a GPU, as the kernel's driver tells them in sysfs.
//!
//! Names and units are those of <https://docs.kernel.org/gpu/amdgpu/thermal.html>; the driver's table of metrics has its
//! layout in the kernel's `kgd_pp_interface.h`, its bits in `amdgpu_smu.h`.

use std::path::{Path, PathBuf};

/// Where to read.
#[derive(Clone, Debug)]
pub struct Sensors {
    device: PathBuf,
    hwmon: Option<PathBuf>,
}

/// What was read at one moment. What the driver does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The hottest of the chip's temperatures, in degrees Celsius.
    pub hot: Option<f64>,
    /// The memory's, in degrees Celsius.
    pub memory: Option<f64>,
    /// Power of the card, in watts.
    pub watts: Option<f64>,
    /// Core clock, in MHz.
    pub megahertz: Option<f64>,
    /// What holds the clock back now.
    pub throttled: Option<Throttle>,
}

/// What holds the clock back, as bits: the driver's, which are alike for all GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle(pub u64);

impl Throttle {
    /// In words; empty if nothing does.
    pub fn reasons(self) -> Vec<&'static str> {
        const GROUPS: [(u64, &str); 4] = [
            (0xffff, "the power limit"),
            (0xffff << 16, "the current limit"),
            (0xffff << 32, "temperature"),
            (0xffff << 48, "reliability"),
        ];
        (GROUPS.iter())
            .filter(|(bits, _)| self.0 & bits != 0)
            .map(|(_, reason)| *reason)
            .collect()
    }
}

/// Where the tables of metrics have the bits of [`Throttle`]: format and content revision, byte offset.
const THROTTLE_AT: &[((u8, u8), usize)] = &[((1, 3), 112), ((2, 2), 120)];

impl Sensors {
    /// The sensors of the GPU at a PCI address, under `root`; none if the kernel does not show it.
    pub fn of(root: &Path, pci_id: &str) -> Option<Self> {
        let device = root.join("sys/bus/pci/devices").join(pci_id);
        if !device.is_dir() {
            return None;
        }
        let hwmon = std::fs::read_dir(device.join("hwmon")).ok();
        let hwmon = hwmon.and_then(|mut entries| Some(entries.next()?.ok()?.path()));
        Some(Sensors { device, hwmon })
    }

    /// Reads all.
    pub fn sample(&self) -> Sample {
        let edge = self.read("temp1_input", 1e3);
        let junction = self.read("temp2_input", 1e3);
        Sample {
            hot: junction.or(edge),
            memory: self.read("temp3_input", 1e3),
            watts: self
                .read("power1_average", 1e6)
                .or_else(|| self.read("power1_input", 1e6)),
            megahertz: self.read("freq1_input", 1e6),
            throttled: self.throttled(),
        }
    }

    /// The temperature at which the driver slows the chip down, in degrees Celsius.
    pub fn critical(&self) -> Option<f64> {
        self.read("temp2_crit", 1e3)
            .or_else(|| self.read("temp1_crit", 1e3))
    }

    /// The power limit now and as the card was made, in watts.
    pub fn power_caps(&self) -> Option<(f64, f64)> {
        let now = self.read("power1_cap", 1e6)?;
        Some((now, self.read("power1_cap_default", 1e6)?))
    }

    /// A number of hwmon's, in the unit that so many of its own make.
    fn read(&self, name: &str, unit: f64) -> Option<f64> {
        let text = std::fs::read_to_string(self.hwmon.as_ref()?.join(name)).ok()?;
        Some(text.trim().parse::<f64>().ok()? / unit)
    }

    fn throttled(&self) -> Option<Throttle> {
        let table = std::fs::read(self.device.join("gpu_metrics")).ok()?;
        let revision = (*table.get(2)?, *table.get(3)?);
        let (_, at) = THROTTLE_AT.iter().find(|(known, _)| *known == revision)?;
        let mut bits = [0; size_of::<u64>()];
        bits.copy_from_slice(table.get(*at..at + size_of::<u64>())?);
        // All ones: the driver does not know.
        Some(Throttle(u64::from_le_bytes(bits))).filter(|throttle| throttle.0 != u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const PCI: &str = "0000:03:00.0";

    fn card(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/bus/pci/devices").join(PCI);
        fs::create_dir_all(folder.join("hwmon/hwmon4")).unwrap();
        for (name, bytes) in files {
            fs::write(folder.join(name), bytes).unwrap();
        }
        root
    }

    /// A table of metrics with throttle bits where its revision has them.
    fn metrics(revision: (u8, u8), at: usize, bits: u64) -> Vec<u8> {
        let mut table = vec![0; at + 8];
        (table[2], table[3]) = revision;
        table[at..].copy_from_slice(&bits.to_le_bytes());
        table
    }

    #[test]
    fn temperatures_power_and_clocks_are_read() {
        let root = card(&[
            ("hwmon/hwmon4/temp1_input", b"55000\n"),
            ("hwmon/hwmon4/temp2_input", b"71000\n"),
            ("hwmon/hwmon4/temp2_crit", b"110000\n"),
            ("hwmon/hwmon4/temp3_input", b"80000\n"),
            ("hwmon/hwmon4/power1_average", b"301000000\n"),
            ("hwmon/hwmon4/power1_cap", b"250000000\n"),
            ("hwmon/hwmon4/power1_cap_default", b"355000000\n"),
            ("hwmon/hwmon4/freq1_input", b"2482000000\n"),
            ("gpu_metrics", &metrics((1, 3), 112, 1 << 36 | 1 << 2)),
        ]);
        let sensors = Sensors::of(root.path(), PCI).unwrap();
        let sample = sensors.sample();
        assert_eq!((sample.hot, sample.memory), (Some(71.0), Some(80.0)));
        assert_eq!(
            (sample.watts, sample.megahertz),
            (Some(301.0), Some(2482.0))
        );
        assert_eq!(sensors.critical(), Some(110.0));
        assert_eq!(sensors.power_caps(), Some((250.0, 355.0)));
        assert_eq!(
            sample.throttled.unwrap().reasons(),
            ["the power limit", "temperature"]
        );
    }

    #[test]
    fn what_the_driver_does_not_tell_is_not_made_up() {
        let root = card(&[]);
        assert_eq!(
            Sensors::of(root.path(), PCI).unwrap().sample(),
            Sample::default()
        );
        assert!(Sensors::of(root.path(), "0000:04:00.0").is_none());
        for table in [
            vec![0; 2],
            metrics((9, 9), 112, 1),
            metrics((2, 2), 120, u64::MAX),
            vec![8, 0, 1, 3],
        ] {
            let root = card(&[("gpu_metrics", &table)]);
            let sample = Sensors::of(root.path(), PCI).unwrap().sample();
            assert_eq!(sample.throttled, None, "{table:?}");
        }
        let free = card(&[("gpu_metrics", &metrics((2, 2), 120, 0))]);
        let throttled = Sensors::of(free.path(), PCI).unwrap().sample().throttled;
        assert!(throttled.unwrap().reasons().is_empty());
    }
}
