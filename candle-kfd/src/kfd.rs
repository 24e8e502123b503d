//! The driver, opened: its version, its GPUs, and what all of them share.

use crate::driver::{Driver, Errno};
use crate::event::FaultEvents;
use crate::fault::Regions;
use crate::generation::{Generation, PAGE};
use crate::gpu::{Device, Displays, Gpu};
use crate::memory::{AddressSpace, Block};
use crate::system;
use crate::uapi::{DeviceApertures, GetProcessAperturesNew, GetVersion, RuntimeEnable};
use crate::uapi::{Request, RUNTIME_ENABLE_MODE_ENABLE};
use crate::{Error, Result};
use gpu_topology::Node;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The oldest interface that is talked to: that of Linux 5.16.
const OLDEST: (u32, u32) = (1, 6);
/// Since when a process tells that a runtime works in it.
const KNOWS_RUNTIMES: (u32, u32) = (1, 13);
/// GPUs of a machine at most, far more than the driver has names for.
const MOST_GPUS: u32 = 1024;

/// The compute driver as this process has it.
///
/// The kernel gives a process one address space on each GPU and one page of events, so that a process has one `Kfd` only.
#[derive(Debug)]
pub struct Kfd {
    pub(crate) shared: Arc<Shared>,
    version: (u32, u32),
    nodes: Vec<Node>,
    /// By the index of the node.
    pub(crate) devices: Vec<Device>,
    pub(crate) space: AddressSpace,
    pub(crate) faults: OnceLock<FaultEvents>,
    /// Where GPUs leave the numbers of events.
    pub(crate) page: OnceLock<Block>,
    /// Held while a GPU is opened.
    opening: Mutex<()>,
}

/// What memory needs for as long as it lives.
#[derive(Debug)]
pub(crate) struct Shared {
    pub driver: Arc<dyn Driver>,
    pub regions: Regions,
    pub failed_releases: AtomicU64,
    /// In which process this is: see [`system::forks`].
    forks: u64,
}

/// The ranges of addresses of a GPU that mean something, each with its last address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apertures {
    /// LDS, for flat instructions.
    pub lds: (u64, u64),
    /// Scratch memory, for flat instructions.
    pub scratch: (u64, u64),
    /// All that can be mapped.
    pub memory: (u64, u64),
}

impl Kfd {
    /// The kernel's driver. It is opened once; a process has one.
    ///
    /// # Errors
    /// [`Error::System`] on another system than Linux, [`Error::Open`] if there is none or this user may not use it, those
    /// of [`with`](Self::with).
    pub fn open() -> Result<Arc<Kfd>> {
        static OPENED: Mutex<Option<Arc<Kfd>>> = Mutex::new(None);
        let mut opened = OPENED
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(kfd) = &*opened {
            if kfd.shared.own_process().is_ok() {
                return Ok(kfd.clone());
            }
        }
        // A parent's, of which a forked process can do nothing: not even give back.
        std::mem::forget(opened.take());
        let kfd = Self::with(system::driver()?)?;
        *opened = Some(kfd.clone());
        Ok(kfd)
    }

    /// Another driver. For the kernel's, [`open`](Self::open) makes sure that there is one only.
    ///
    /// # Errors
    /// [`Error::Version`] if it is too old, [`Error::Pages`] if the host's pages are too large, [`Error::Undescribed`] and
    /// [`Error::Topology`] if what the kernel tells of GPUs is missing or makes no sense.
    pub fn with(driver: Arc<dyn Driver>) -> Result<Arc<Kfd>> {
        check_pages(system::page_bytes())?;
        let mut version = GetVersion::default();
        // SAFETY: the request holds no addresses.
        unsafe { driver.request(&mut version) }?;
        let version = (version.major_version, version.minor_version);
        if version.0 != OLDEST.0 || version < OLDEST {
            return Err(Error::Version {
                version,
                oldest: OLDEST,
            });
        }
        let nodes = Node::read_from(driver.root());
        let apertures = apertures(&*driver, &nodes)?;
        // A GPU that no table here knows is never opened, and may be an old one that sees little.
        let known = (apertures.iter().zip(&nodes))
            .filter(|(_, node)| Generation::of(&node.arch).is_ok())
            .map(|(apertures, _)| apertures.memory);
        let space = AddressSpace::new(known);
        Ok(Arc::new(Kfd {
            shared: Arc::new(Shared {
                driver,
                regions: Regions::default(),
                failed_releases: AtomicU64::new(0),
                forks: system::forks(),
            }),
            version,
            devices: apertures.into_iter().map(Device::new).collect(),
            nodes,
            space,
            faults: OnceLock::new(),
            page: OnceLock::new(),
            opening: Mutex::new(()),
        }))
    }

    /// The GPUs that this process may use, by the number of their nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The driver behind it.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.shared.driver
    }

    /// The interface's version, such as (1, 14).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// How often memory, an event or the like could not be given back. The kernel takes all of it when the process ends.
    pub fn failed_releases(&self) -> u64 {
        self.shared.failed_releases.load(Ordering::Relaxed)
    }

    /// Opens a GPU by its place in [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// [`Error::NoGpu`] beyond the last one, [`Error::UnknownArch`] if no table here has it, [`Error::Display`] if it drives
    /// a display and the caller did not allow that, [`Error::Open`] and [`Error::Ioctl`] if the driver refuses it,
    /// [`Error::Lost`] after a fault.
    pub fn gpu(self: &Arc<Self>, index: usize, displays: Displays) -> Result<Arc<Gpu>> {
        let _opening = self
            .opening
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        self.shared.own_process()?;
        let gpu = Gpu::open(self, index, displays)?;
        if self.faults.get().is_none() {
            self.enable_runtime()?;
            let faults = FaultEvents::new(&gpu)?;
            // Nobody else sets it while the lock is held.
            let _ = self.faults.set(faults);
        } else if let Some(page) = self.page.get() {
            page.map_to(&[gpu.node().gpu_id])?;
        }
        Ok(gpu)
    }

    /// Tells the driver that a runtime works in this process, before there are queues. Without it, the firmware of RDNA 3
    /// and later keeps state of the process before (Linux' `kfd_chardev.c`, `runtime_enable`).
    fn enable_runtime(&self) -> Result<()> {
        if self.version < KNOWS_RUNTIMES {
            return Ok(());
        }
        let mut request = RuntimeEnable {
            mode_mask: RUNTIME_ENABLE_MODE_ENABLE,
            ..RuntimeEnable::default()
        };
        // SAFETY: the request holds no addresses but that of a debugger's list, which is none.
        match unsafe { self.driver().request(&mut request) } {
            // Another library of this process has said so already, and may have queues.
            Err(Error::Ioctl {
                errno: Errno(libc::EBUSY | libc::EEXIST),
                ..
            }) => Ok(()),
            other => other,
        }
    }
}

/// Memory of GPUs is handed out in their pages, which the host has to be able to map one by one.
fn check_pages(bytes: usize) -> Result<()> {
    match bytes {
        PAGE => Ok(()),
        bytes => Err(Error::Pages { bytes }),
    }
}

impl Shared {
    /// Whether this is the process that opened the driver, and not one that was forked from it: the driver answers none
    /// but the former, and what a child writes to their common memory would be the parent's packets.
    ///
    /// # Errors
    /// [`Error::Forked`] if it is not.
    pub fn own_process(&self) -> Result<()> {
        match system::forks() == self.forks {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// Makes a request at the end of something's life, when nobody is there to hear of a failure.
    pub fn release<R: Request>(&self, mut request: R) -> bool {
        let released = self.own_process().is_ok()
            // SAFETY: releases hold a handle, or point to numbers of GPUs that live in the caller.
            && unsafe { self.driver.request(&mut request) }.is_ok();
        if !released {
            self.failed_releases.fetch_add(1, Ordering::Relaxed);
        }
        released
    }
}

/// The apertures of the nodes' GPUs, in their order.
fn apertures(driver: &dyn Driver, nodes: &[Node]) -> Result<Vec<Apertures>> {
    let mut request = GetProcessAperturesNew::default();
    // SAFETY: without room for any, the driver only counts.
    unsafe { driver.request(&mut request) }?;
    let count = request.num_of_nodes.min(MOST_GPUS);
    let mut found = vec![DeviceApertures::default(); count as usize];
    if count > 0 {
        request.kfd_process_device_apertures_ptr = found.as_mut_ptr() as u64;
        request.num_of_nodes = count;
        // SAFETY: the array has room for so many, and lives for as long as the request.
        unsafe { driver.request(&mut request) }?;
    }
    if nodes.is_empty() && count > 0 {
        return Err(Error::Undescribed { gpus: count });
    }
    (nodes.iter())
        .map(|node| {
            let own = found.iter().find(|own| own.gpu_id == node.gpu_id);
            let own = own.ok_or_else(|| Error::Topology {
                problem: format!(
                    "it has no addresses for GPU {} of node {}",
                    node.gpu_id, node.index
                ),
            })?;
            Ok(Apertures {
                lds: (own.lds_base, own.lds_limit),
                scratch: (own.scratch_base, own.scratch_limit),
                memory: (own.gpuvm_base, own.gpuvm_limit),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_pages_than_those_of_gpus_are_refused() {
        assert_eq!(check_pages(4096), Ok(()));
        for bytes in [0, 16 << 10, 64 << 10] {
            let refused = check_pages(bytes).unwrap_err();
            assert_eq!(refused, Error::Pages { bytes });
            assert!(refused.to_string().contains(&bytes.to_string()));
        }
    }
}
