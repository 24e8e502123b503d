//! What was measured, kept for later starts.

use candle::Device;
use candle_rocm::known_issues::Versions;

/// The kind of results, for [`candle_rocm::Device::remember`].
const KIND: &str = "collective";

/// What is known of a group of GPUs.
pub(super) struct Memory {
    /// The device whose file it is in.
    device: candle_rocm::Device,
    /// The GPUs and their places, ROCm, and what was compared.
    key: String,
}

impl Memory {
    /// Of these devices and candidates; none if one is no GPU.
    pub fn of(devices: &[Device], names: &[&str]) -> Option<Self> {
        let gpus = devices.iter().map(|device| match device {
            Device::Rocm(gpu) => Some(gpu.device().clone()),
            _ => None,
        });
        let gpus = gpus.collect::<Option<Vec<_>>>()?;
        let places = gpus.iter().map(|gpu| {
            let properties = gpu.properties();
            format!("{}@{}", properties.full_arch, properties.pci_id)
        });
        let versions = Versions::read();
        let rocm = versions.rocm.map(|release| release.to_string());
        let key = format!(
            "{} {} {}",
            places.collect::<Vec<_>>().join(","),
            rocm.unwrap_or_default(),
            names.join("+")
        );
        Some(Self {
            device: gpus.into_iter().next()?,
            // As names and values are kept in lines of two columns.
            key: key.replace(['\t', '\n'], " "),
        })
    }

    /// The fastest of `names` for each size, if all sizes were measured.
    pub fn recall(&self, sizes: &[usize], names: &[&'static str]) -> Option<Vec<&'static str>> {
        let known = self.device.recall(KIND);
        let (_, value) = known.into_iter().find(|(key, _)| *key == self.key)?;
        let of_size = |size: &usize| {
            let wanted = size.to_string();
            let mut pairs = value.split(' ').filter_map(|pair| pair.split_once('='));
            let (_, name) = pairs.find(|(size, _)| *size == wanted)?;
            names.iter().copied().find(|known| *known == name)
        };
        sizes.iter().map(of_size).collect()
    }

    /// Keeps the fastest for each size. That it cannot be kept only costs time at the next start.
    pub fn remember(&self, sizes: &[usize], fastest: &[&'static str]) {
        let pairs = sizes.iter().zip(fastest);
        let pairs = pairs.map(|(size, name)| format!("{size}={name}"));
        let value = pairs.collect::<Vec<_>>().join(" ");
        let mut known = self.device.recall(KIND);
        known.retain(|(key, _)| *key != self.key);
        known.push((self.key.clone(), value));
        let _ = self.device.remember(KIND, &known);
    }
}
