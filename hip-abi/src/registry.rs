//! Handles: numbers that look like pointers, are never reused, and are looked up, so that a stale one is an error and
//! no crash.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

/// Objects behind handles of one C type.
pub struct Registry<T> {
    next: AtomicUsize,
    objects: RwLock<HashMap<usize, Arc<T>>>,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        // No process can map this address: a program that dereferences a handle faults at once.
        Registry {
            next: AtomicUsize::new(0x00A0_0000_0000_0000),
            objects: RwLock::default(),
        }
    }
}

impl<T> Registry<T> {
    /// Makes a handle for an object.
    pub fn insert(&self, object: Arc<T>) -> *mut c_void {
        let handle = self.next.fetch_add(16, Ordering::Relaxed);
        self.objects
            .write()
            .unwrap_or_else(|e| e.into_inner())
            .insert(handle, object);
        handle as *mut c_void
    }

    /// The object behind a handle.
    pub fn get(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.objects
            .read()
            .unwrap_or_else(|e| e.into_inner())
            .get(&(handle as usize))
            .cloned()
    }

    /// Ends a handle.
    pub fn remove(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.objects
            .write()
            .unwrap_or_else(|e| e.into_inner())
            .remove(&(handle as usize))
    }

    /// Visits all objects.
    pub fn for_each(&self, visit: impl Fn(&T)) {
        self.objects
            .read()
            .unwrap_or_else(|e| e.into_inner())
            .values()
            .for_each(|object| visit(object));
    }

    /// Ends all handles whose objects satisfy `gone`.
    pub fn remove_if(&self, gone: impl Fn(&T) -> bool) {
        self.objects
            .write()
            .unwrap_or_else(|e| e.into_inner())
            .retain(|_, object| !gone(object));
    }
}
