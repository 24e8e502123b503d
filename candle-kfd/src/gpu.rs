//! A GPU, opened.

use crate::driver::Errno;
use crate::driver::MappedFile;
use crate::fault::Fault;
use crate::generation::{Generation, DOORBELL_BYTES, PAGE};
use crate::kfd::{Apertures, Kfd};
use crate::memory::Reservation;
use crate::system;
use crate::uapi::{AcquireVm, GetAvailableMemory, GetClockCounters};
use crate::{Error, Result};
use gpu_topology::{displays, Node};
use std::fs::File;
use std::sync::atomic::{fence, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Since when the driver tells how much memory is free.
const TELLS_FREE_MEMORY: (u32, u32) = (1, 9);
/// Bytes of a process's doorbells of one GPU: 1024 of them (Linux' `kfd_doorbell.c`).
const DOORBELLS_BYTES: usize = (1024 * DOORBELL_BYTES).next_multiple_of(PAGE);

/// Whether a GPU that somebody looks at may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Displays {
    /// It may not: a hang would take the desktop with it.
    #[default]
    Refuse,
    /// It may, as the user said so.
    Allow,
}

/// What a process has of a GPU for as long as it has the driver: the kernel binds a GPU to the first render node.
#[derive(Debug)]
pub(crate) struct Device {
    pub apertures: Apertures,
    pub render: OnceLock<File>,
    doorbells: Mutex<Option<Doorbells>>,
    pub lost: OnceLock<Fault>,
}

/// The page of doorbells: where it is in the file, and in memory.
#[derive(Debug)]
struct Doorbells {
    offset: u64,
    mapped: Reservation,
}

impl Device {
    pub fn new(apertures: Apertures) -> Self {
        Device {
            apertures,
            render: OnceLock::new(),
            doorbells: Mutex::new(None),
            lost: OnceLock::new(),
        }
    }

    /// Whether no fault is known on it.
    pub fn usable(&self, node: &Node) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(fault) => Err(Error::Lost {
                gpu: node.pci_id.clone(),
                fault: Box::new(fault.clone()),
            }),
        }
    }
}

/// A GPU that this process has opened.
#[derive(Debug)]
pub struct Gpu {
    kfd: Arc<Kfd>,
    index: usize,
    generation: &'static Generation,
}

/// Counters of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The GPU's, with which its timestamps are made.
    pub gpu: u64,
    /// The processor's monotonic clock, in ns.
    pub cpu: u64,
    /// The system's clock, in `system_hz`.
    pub system: u64,
    /// Ticks of the system's clock in a second.
    pub system_hz: u64,
}

impl Gpu {
    /// Opens the render node and takes its address space. The driver has a lock on this.
    pub(crate) fn open(kfd: &Arc<Kfd>, index: usize, allowed: Displays) -> Result<Arc<Gpu>> {
        let node = kfd.nodes().get(index).ok_or(Error::NoGpu {
            index,
            count: kfd.nodes().len(),
        })?;
        let generation = Generation::of(&node.arch)?;
        if allowed == Displays::Refuse {
            let outputs = displays(kfd.driver().root(), &node.pci_id);
            if !outputs.is_empty() {
                return Err(Error::Display {
                    gpu: node.pci_id.clone(),
                    outputs,
                });
            }
        }
        let device = &kfd.devices[index];
        if device.render.get().is_none() {
            let minor = node.render_minor;
            let render = kfd
                .driver()
                .open_render(minor)
                .map_err(|errno| Error::Open {
                    path: format!("/dev/dri/renderD{minor}"),
                    errno,
                })?;
            let mut request = AcquireVm {
                drm_fd: system::descriptor(&render).map_err(|errno| Error::Open {
                    path: format!("/dev/dri/renderD{minor}"),
                    errno,
                })?,
                gpu_id: node.gpu_id,
            };
            // SAFETY: the request holds no addresses.
            unsafe { kfd.driver().request(&mut request) }?;
            // Nobody else sets it while the lock is held.
            let _ = device.render.set(render);
        }
        let gpu = Arc::new(Gpu {
            kfd: kfd.clone(),
            index,
            generation,
        });
        gpu.usable()?;
        Ok(gpu)
    }

    /// What the kernel tells of it.
    pub fn node(&self) -> &Node {
        &self.kfd.nodes()[self.index]
    }

    /// What differs from one GPU to the next.
    pub fn generation(&self) -> &'static Generation {
        self.generation
    }

    /// The driver.
    pub fn kfd(&self) -> &Arc<Kfd> {
        &self.kfd
    }

    /// Which addresses mean what.
    pub fn apertures(&self) -> &Apertures {
        &self.device().apertures
    }

    pub(crate) fn device(&self) -> &Device {
        &self.kfd.devices[self.index]
    }

    pub(crate) fn render(&self) -> Result<&File> {
        self.device().render.get().ok_or_else(|| Error::Open {
            path: format!("/dev/dri/renderD{}", self.node().render_minor),
            errno: Errno(libc::EBADF),
        })
    }

    /// Whether the two are the same GPU of the same driver.
    pub fn is(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.kfd, &other.kfd) && self.index == other.index
    }

    /// Device memory that is free, in bytes.
    ///
    /// # Errors
    /// [`Error::TooOld`] if the driver cannot tell, [`Error::Ioctl`] if it does not.
    pub fn free_bytes(&self) -> Result<u64> {
        self.kfd.shared.own_process()?;
        if self.kfd.version() < TELLS_FREE_MEMORY {
            return Err(Error::TooOld {
                what: "how much memory is free",
                since: TELLS_FREE_MEMORY,
                version: self.kfd.version(),
            });
        }
        let mut request = GetAvailableMemory {
            gpu_id: self.node().gpu_id,
            ..GetAvailableMemory::default()
        };
        // SAFETY: the request holds no addresses.
        unsafe { self.kfd.driver().request(&mut request) }?;
        Ok(request.available)
    }

    /// The GPU's clock and others, of one moment.
    ///
    /// # Errors
    /// [`Error::Ioctl`] if the driver refuses.
    pub fn clocks(&self) -> Result<Clocks> {
        self.kfd.shared.own_process()?;
        let mut request = GetClockCounters {
            gpu_id: self.node().gpu_id,
            ..GetClockCounters::default()
        };
        // SAFETY: the request holds no addresses.
        unsafe { self.kfd.driver().request(&mut request) }?;
        Ok(Clocks {
            gpu: request.gpu_clock_counter,
            cpu: request.cpu_clock_counter,
            system: request.system_clock_counter,
            system_hz: request.system_clock_freq,
        })
    }

    /// The doorbell of a queue, at the offset that its creation returned.
    ///
    /// # Errors
    /// [`Error::Doorbell`] if the offset is none, [`Error::Reserve`] and [`Error::Map`] if the page cannot be mapped,
    /// [`Error::Lost`] after a fault.
    pub fn doorbell(self: &Arc<Self>, offset: u64) -> Result<Doorbell> {
        self.usable()?;
        let within = (offset % DOORBELLS_BYTES as u64) as usize;
        let page = offset - within as u64;
        let mut doorbells =
            (self.device().doorbells.lock()).unwrap_or_else(|poisoned| poisoned.into_inner());
        if doorbells.is_none() {
            let mapped = self.kfd.space.reserve(DOORBELLS_BYTES, PAGE)?;
            // SAFETY: the reservation is ours, and nothing refers to it yet.
            unsafe {
                (self.kfd.driver()).map(MappedFile::Kfd, page, mapped.address(), DOORBELLS_BYTES)
            }
            .map_err(|errno| Error::Map {
                what: "doorbells",
                bytes: DOORBELLS_BYTES,
                errno,
            })?;
            *doorbells = Some(Doorbells {
                offset: page,
                mapped,
            });
        }
        match &*doorbells {
            Some(there) if there.offset == page && within.is_multiple_of(DOORBELL_BYTES) => {
                Ok(Doorbell {
                    gpu: self.clone(),
                    address: there.mapped.address() + within,
                })
            }
            _ => Err(Error::Doorbell { offset }),
        }
    }

    /// Asks the driver whether something went wrong on this GPU.
    ///
    /// # Errors
    /// [`Error::Lost`] with the fault; from then on the GPU is refused. [`Error::Ioctl`] if the driver does not answer.
    pub fn check_faults(&self) -> Result<()> {
        self.usable()?;
        self.kfd.look_for_faults()?;
        self.usable()
    }

    /// Whether no fault is known, without asking the driver.
    ///
    /// # Errors
    /// [`Error::Lost`] with the fault, [`Error::Forked`] in a process that was forked from the one that opened the GPU.
    pub fn usable(&self) -> Result<()> {
        self.kfd.shared.own_process()?;
        self.device().usable(self.node())
    }
}

/// Where a queue's new packets are announced.
#[derive(Debug)]
pub struct Doorbell {
    gpu: Arc<Gpu>,
    address: usize,
}

impl Doorbell {
    /// Announces packets, by what the queue's kind says: the index of the last one, or the bytes written so far. What was
    /// written before is seen by the GPU before. In a forked process nothing happens: the doorbells are the parent's.
    pub fn ring(&self, value: u64) {
        if self.gpu.kfd.shared.own_process().is_err() {
            return;
        }
        fence(Ordering::SeqCst);
        // SAFETY: the page of doorbells is mapped for as long as the driver, which the GPU holds; the address is in it and
        // aligned.
        unsafe { std::ptr::write_volatile(self.address as *mut u64, value) };
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}
