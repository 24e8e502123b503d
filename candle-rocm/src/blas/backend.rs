//! Who computes a product: rocBLAS, or kernels of our own.

use super::measured::{Class, Measured};
use super::tensile;
use crate::config::Multiplier;
use crate::slots::Kept;
use crate::sys::loader::mapped_file;
use crate::sys::rocblas::RocBlas;
use crate::{Device, Generation};
use std::sync::OnceLock;

/// Who computes products of a class: the one place where that is decided.
pub fn multiplier(device: &Device, class: Class) -> Multiplier {
    if let Some(forced) = device.config().matmul {
        return forced;
    }
    if refusal(device).is_some() {
        return Multiplier::Own;
    }
    let measured = Measured::of(device).get(device.gpu(), class);
    measured.unwrap_or(Multiplier::Rocblas)
}

/// Whether products may go to rocBLAS, so that it has to be ready.
pub(super) fn may_be_rocblas(device: &Device) -> bool {
    match device.config().matmul {
        Some(forced) => forced == Multiplier::Rocblas,
        None => refusal(device).is_none(),
    }
}

/// Why rocBLAS cannot work on a GPU; found out once.
#[derive(Default)]
struct Refusal(OnceLock<Option<String>>);

impl Kept for Refusal {}

/// Why rocBLAS cannot multiply on this device, and what to do; none if it can. Kernels of our own take its place then,
/// unless [`Config::matmul`](crate::config::Config::matmul) says otherwise.
pub fn refusal(device: &Device) -> Option<&'static str> {
    let refusal: &'static Refusal = device.shared().slot();
    refusal.0.get_or_init(|| find_refusal(device)).as_deref()
}

fn find_refusal(device: &Device) -> Option<String> {
    let library = match RocBlas::get() {
        Ok(library) => library,
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            return Some(first.trim_end_matches(" Tried:").to_string());
        }
    };
    let arch = &device.properties().arch;
    if arch.generation() == Generation::Nvptx {
        // cuBLAS, which has kernels for every GPU.
        return None;
    }
    let mapped = mapped_file(library.functions.rocblas_create_handle as usize);
    let libraries: Vec<_> = [Some(library.path.clone()), mapped]
        .into_iter()
        .flatten()
        .collect();
    let folders = tensile::folders(std::env::var_os(tensile::LIBRARY_PATH), &libraries);
    if tensile::has_kernels(&folders, arch.as_str()) {
        return None;
    }
    let folders: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    Some(format!(
        "{} has no kernels for {arch}: no TensileLibrary*{arch}* in or below {}. Install a rocBLAS that is built for \
         {arch}, or, where a similar GPU is known to work in its place, set HSA_OVERRIDE_GFX_VERSION to that (10.3.0 \
         for RX 6000, 11.0.0 for RX 7000)",
        library.path.display(),
        folders.join(" and ")
    ))
}
