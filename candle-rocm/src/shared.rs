//! What all devices on one GPU share, as long as the process lives.

use crate::captures::Captures;
use crate::gpu::Gpu;
use crate::module::Modules;
use crate::slots::{Kept, Slots};
use crate::sync::lock;
use crate::Result;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

/// A GPU of this process, with what is loaded and known of it.
pub(crate) struct Shared {
    pub gpu: Gpu,
    pub modules: Modules,
    pub captures: Captures,
    slots: Slots,
}

impl Shared {
    /// The GPU of an ordinal.
    pub fn get(ordinal: usize) -> Result<&'static Self> {
        static GPUS: OnceLock<Mutex<HashMap<usize, &'static Shared>>> = OnceLock::new();
        let mut gpus = lock(GPUS.get_or_init(Mutex::default));
        if let Some(shared) = gpus.get(&ordinal) {
            return Ok(shared);
        }
        let shared: &'static Self = Box::leak(Box::new(Shared {
            gpu: Gpu::open(ordinal)?,
            modules: Modules::default(),
            captures: Captures::default(),
            slots: Slots::default(),
        }));
        gpus.insert(ordinal, shared);
        Ok(shared)
    }

    /// What is kept of a type for the GPU.
    pub fn slot<T: Kept + Default>(&self) -> &T {
        self.slots.get()
    }
}
