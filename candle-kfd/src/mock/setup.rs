//! What a mock has.

use super::model::Model;
use super::sysfs::Described;
use std::io;

/// What a driver and its GPUs are like.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its GPUs.
    pub gpus: Vec<GpuSetup>,
    /// The version of the driver's interface.
    pub version: (u32, u32),
    /// Whether GPUs may see each other's memory.
    pub linked: bool,
    /// Whether the driver says in sysfs how much of a queue is saved, as newer ones do.
    pub tells_areas: bool,
    /// Whether what a queue saves must be exactly as large as the driver computes, as kernels from 6.11 on wanted it
    /// until they let it be larger.
    pub exact_areas: bool,
}

/// What one GPU is like.
#[derive(Clone, Debug)]
pub struct GpuSetup {
    /// Its arch, such as `gfx1100`. One that this crate does not know is made, too.
    pub arch: String,
    /// Its memory in bytes; that of a usual card if none.
    pub vram: Option<u64>,
    /// Whether the host can see all of its memory.
    pub large_bar: bool,
    /// Whether a display is connected to it.
    pub display: bool,
}

impl GpuSetup {
    /// Of an arch, with a usual card's memory, all of it visible, and without a display.
    pub fn of(arch: &str) -> Self {
        GpuSetup {
            arch: arch.to_string(),
            vram: None,
            large_bar: true,
            display: false,
        }
    }
}

impl Setup {
    /// GPUs of these archs that see each other's memory, and a driver of version 1.17.
    pub fn of(archs: &[&str]) -> Self {
        Setup {
            gpus: archs.iter().map(|arch| GpuSetup::of(arch)).collect(),
            version: (1, 17),
            linked: true,
            tells_areas: false,
            exact_areas: false,
        }
    }

    /// Changes every GPU.
    pub fn each(mut self, change: impl Fn(&mut GpuSetup)) -> Self {
        self.gpus.iter_mut().for_each(change);
        self
    }

    /// The GPUs as sysfs describes them.
    pub(super) fn described(&self) -> io::Result<Vec<Described>> {
        let one = |(index, gpu): (usize, &GpuSetup)| {
            let model = Model::of(&gpu.arch).ok_or_else(|| {
                let text = format!("{} is no name of an arch; gfx1100 is one", gpu.arch);
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?;
            Ok(Described {
                gpu_id: 0x1b6b + 0x101 * index as u32,
                vram: gpu.vram.unwrap_or(u64::from(model.vram_gib) << 30),
                large_bar: gpu.large_bar,
                display: gpu.display,
                tells_areas: self.tells_areas,
                exact_areas: self.exact_areas,
                model,
            })
        };
        self.gpus.iter().enumerate().map(one).collect()
    }
}
