//! What the driver knows: of each GPU its memory and addresses, and the process' events.

use super::events::Events;
use super::injected::Injected;
use super::pages::{Pages, PAGE};
use super::processor::{Dialect, Kernels, Queue};
use super::setup::Setup;
use super::space::{Backing, Space};
use super::sysfs::Described;
use super::user::User;
use super::Left;
use crate::driver::Errno;
use crate::uapi::flags;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex};

/// What of an offset says what is mapped, and of which GPU (`KFD_MMAP_TYPE_…`, `KFD_MMAP_GPU_ID_…` of `kfd_priv.h`).
const MMAP_TYPE_SHIFT: u32 = 62;
const MMAP_DOORBELL: u64 = 3;
const MMAP_EVENTS: u64 = 2;
const MMAP_GPU_SHIFT: u32 = 46;

/// Doorbells of a process on one GPU: 1024 of 8 bytes (`kfd_doorbell_process_slice`).
pub(super) const DOORBELL_BYTES: u64 = 1024 * 8;

/// The first and last address of memory (`SVM_USER_BASE` and `gpuvm_size` of 47 bits, `kfd_flat_memory.c`).
pub(super) const GPUVM: (u64, u64) = (0x100_0000, (1 << 47) - 1);

/// Ends of the address ranges that stand for LDS and scratch memory (`kfd_init_apertures_v9`).
pub(super) const LDS_BASE: u64 = 1 << 48;
pub(super) const SCRATCH_BASE: u64 = 2 << 48;
pub(super) const APERTURE_LAST: u64 = 0xffff_ffff;

/// The driver's state, and who waits for a change of it.
#[derive(Debug)]
pub(super) struct Shared {
    pub state: Mutex<State>,
    /// Events.
    pub woken: Condvar,
    pub user: User,
    pub injected: Injected,
    pub kernels: Kernels,
    /// The copy engines' packets of each GPU.
    pub dialects: Vec<Dialect>,
}

/// The driver's state.
#[derive(Debug)]
pub(super) struct State {
    pub setup: Setup,
    pub gpus: Vec<Gpu>,
    /// Open render nodes, by device and number of the file: of which GPU.
    pub renders: HashMap<(u64, u64), usize>,
    pub events: Events,
    pub queues: BTreeMap<u32, Queue>,
    pub runtime_enabled: bool,
    pub calls: HashMap<&'static str, usize>,
    /// Requests to refuse: which, after how many more calls, and why.
    pub refusals: Vec<(&'static str, usize, i32)>,
    /// How many GPUs the next request maps memory to before it fails.
    pub map_partially: Option<u32>,
    /// What hardware would let pass, or hang from without a word.
    pub complaints: Vec<String>,
}

/// A GPU's state.
#[derive(Debug)]
pub(super) struct Gpu {
    pub described: Described,
    /// The render node whose addresses are the process'.
    pub vm: Option<(u64, u64)>,
    pub blocks: BTreeMap<u32, Block>,
    next_block: u32,
    next_offset: u64,
    pub vram_used: u64,
    pub space: Space,
    pub doorbells: Arc<Pages>,
}

/// An allocation.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub handle: u64,
    pub address: u64,
    /// What was asked for, in whole pages.
    pub bytes: u64,
    pub flags: u32,
    pub backing: Backing,
    /// Where a render node maps it.
    pub mmap_offset: u64,
    /// GPUs that see it, by index.
    pub mapped: BTreeSet<usize>,
}

impl Block {
    /// Bytes of memory behind it: half of what is asked for where it appears twice.
    pub fn memory_bytes(&self) -> u64 {
        if self.flags & flags::AQL_QUEUE_MEM != 0 {
            self.bytes / 2
        } else {
            self.bytes
        }
    }
}

impl Shared {
    pub fn new(setup: Setup, described: Vec<Described>) -> Result<Self, Errno> {
        let gpu = |described| {
            Ok(Gpu {
                described,
                vm: None,
                blocks: BTreeMap::new(),
                next_block: 0,
                // As the kernel, from 4 GiB on: `DRM_FILE_PAGE_OFFSET_START`.
                next_offset: 1 << 32,
                vram_used: 0,
                space: Space::default(),
                doorbells: Arc::new(Pages::new(DOORBELL_BYTES)?),
            })
        };
        let dialects = (described.iter())
            .map(|gpu: &Described| Dialect::of(gpu.model.gfx_target_version))
            .collect();
        Ok(Shared {
            injected: Injected::new(described.len()),
            kernels: Kernels::default(),
            dialects,
            state: Mutex::new(State {
                setup,
                gpus: described
                    .into_iter()
                    .map(gpu)
                    .collect::<Result<_, Errno>>()?,
                renders: HashMap::new(),
                events: Events::default(),
                queues: BTreeMap::new(),
                map_partially: None,
                complaints: Vec::new(),
                runtime_enabled: false,
                calls: HashMap::new(),
                refusals: Vec::new(),
            }),
            woken: Condvar::new(),
            user: User::new()?,
        })
    }
}

impl Gpu {
    /// Adds an allocation, whose handle and offset it returns.
    pub fn add(&mut self, mut block: Block) -> (u64, u64) {
        let number = self.next_block;
        self.next_block += 1;
        block.handle = u64::from(self.described.gpu_id) << 32 | u64::from(number);
        if matches!(block.backing, Backing::Pages(_)) {
            block.mmap_offset = self.next_offset;
            self.next_offset += block.bytes.next_multiple_of(PAGE);
        }
        let named = (block.handle, block.mmap_offset);
        self.blocks.insert(number, block);
        named
    }
}

impl State {
    /// Counts a call, and refuses it if that was asked for.
    pub fn admit(&mut self, request: &'static str) -> Result<(), Errno> {
        *self.calls.entry(request).or_default() += 1;
        let mut refused = None;
        self.refusals.retain_mut(|(name, left, errno)| {
            if *name != request {
                return true;
            }
            if *left == 0 {
                refused = Some(Errno(*errno));
                return false;
            }
            *left -= 1;
            true
        });
        refused.map_or(Ok(()), Err)
    }

    /// The GPU of this number.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn gpu(&self, gpu_id: u32) -> Result<usize, Errno> {
        (self.gpus.iter())
            .position(|gpu| gpu.described.gpu_id == gpu_id)
            .ok_or(Errno(libc::EINVAL))
    }

    /// The GPU of this number, on which the process has addresses.
    ///
    /// # Errors
    /// `EINVAL` if there is none, `unbound` if no render node was given for it: `kfd_bind_process_to_device`.
    pub fn bound(&self, gpu_id: u32, unbound: i32) -> Result<usize, Errno> {
        let index = self.gpu(gpu_id)?;
        match self.gpus[index].vm {
            Some(_) => Ok(index),
            None => Err(Errno(unbound)),
        }
    }

    /// The GPU and number of an allocation.
    pub fn block(&self, handle: u64, missing: i32) -> Result<(usize, u32), Errno> {
        let index = self.gpu((handle >> 32) as u32)?;
        let number = handle as u32;
        if !self.gpus[index].blocks.contains_key(&number) {
            return Err(Errno(missing));
        }
        Ok((index, number))
    }

    /// What an offset of `/dev/kfd` maps: doorbells of a GPU, or the page of events.
    pub fn map_kfd(&mut self, offset: u64, bytes: u64) -> Result<(Arc<Pages>, u64), Errno> {
        match offset >> MMAP_TYPE_SHIFT {
            MMAP_DOORBELL => {
                let gpu_id = (offset >> MMAP_GPU_SHIFT & 0xffff) as u32;
                let gpu = &self.gpus[self.gpu(gpu_id)?];
                // `kfd_doorbell_mmap`: all of the process', and nothing else.
                if bytes != DOORBELL_BYTES || offset & (DOORBELL_BYTES - 1) != 0 {
                    return Err(Errno(libc::EINVAL));
                }
                Ok((Arc::clone(&gpu.doorbells), 0))
            }
            MMAP_EVENTS => {
                let page = self.events.page().cloned().ok_or(Errno(libc::EINVAL))?;
                if bytes > page.bytes() {
                    return Err(Errno(libc::EINVAL));
                }
                self.events.page_mapped(bytes);
                Ok((page, 0))
            }
            // `kfd_mmap`.
            _ => Err(Errno(libc::EFAULT)),
        }
    }

    /// What an offset of a render node maps.
    pub fn map_render(
        &self,
        render: (u64, u64),
        offset: u64,
        bytes: u64,
    ) -> Result<(Arc<Pages>, u64), Errno> {
        let index = *self.renders.get(&render).ok_or(Errno(libc::EBADF))?;
        let gpu = &self.gpus[index];
        // `drm_gem_mmap`: nothing there, or not a file that was given this memory.
        let block = (gpu.blocks.values())
            .find(|block| {
                block.mmap_offset != 0
                    && (block.mmap_offset..block.mmap_offset + block.bytes).contains(&offset)
            })
            .ok_or(Errno(libc::EINVAL))?;
        if gpu.vm != Some(render) {
            return Err(Errno(libc::EACCES));
        }
        let Backing::Pages(pages) = &block.backing else {
            return Err(Errno(libc::EINVAL));
        };
        // `amdgpu_gem_object_mmap`: `AMDGPU_GEM_CREATE_NO_CPU_ACCESS` is on all VRAM that is not public.
        if block.flags & flags::VRAM != 0 && block.flags & flags::PUBLIC == 0 {
            return Err(Errno(libc::EPERM));
        }
        let within = offset - block.mmap_offset;
        if within
            .checked_add(bytes)
            .is_none_or(|end| end > pages.bytes())
        {
            return Err(Errno(libc::EINVAL));
        }
        Ok((Arc::clone(pages), within))
    }

    /// What was not given back; the page of events need not be, as the kernel lets nobody free it.
    pub fn left(&self) -> Left {
        let page = self.events.page_handle;
        let blocks = self.gpus.iter().flat_map(|gpu| gpu.blocks.values());
        Left {
            allocations: blocks.filter(|block| Some(block.handle) != page).count(),
            mappings: (self.gpus.iter())
                .map(|gpu| gpu.space.count(|mapping| Some(mapping.handle) != page))
                .sum(),
            events: self.events.len(),
            queues: self.queues.len(),
        }
    }
}

/// The offset at which `/dev/kfd` maps a GPU's doorbells.
pub(super) fn doorbell_offset(gpu_id: u32) -> u64 {
    MMAP_DOORBELL << MMAP_TYPE_SHIFT | u64::from(gpu_id & 0xffff) << MMAP_GPU_SHIFT
}

/// The offset at which `/dev/kfd` maps the page of events.
pub(super) const EVENTS_OFFSET: u64 = MMAP_EVENTS << MMAP_TYPE_SHIFT;
