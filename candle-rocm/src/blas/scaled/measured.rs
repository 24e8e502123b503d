//! For which products hipBLASLt was found to be faster than our own kernels, on the GPU at hand.

use super::{Problem, Size};
use crate::config::ScaledMultiplier;
use crate::gpu::Gpu;
use crate::slots::Kept;
use crate::sync::lock;
use crate::{remembered, Device, Result};
use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::sync::{Mutex, OnceLock};

/// Products that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub by_rows: bool,
    pub size: Size,
}

impl Class {
    /// The class of products with scales of rows or of tensors, and the less of rows and columns.
    pub fn new(by_rows: bool, least: usize) -> Self {
        let size = Size::of(least);
        Class { by_rows, size }
    }

    pub fn of(problem: &Problem) -> Self {
        Self::new(problem.by_rows, problem.m.min(problem.n))
    }

    /// Every class.
    pub fn all() -> impl Iterator<Item = Self> {
        [false, true]
            .into_iter()
            .flat_map(|by_rows| Size::ALL.map(|size| Class { by_rows, size }))
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let scales = if self.by_rows { "rows" } else { "tensors" };
        write!(f, "{scales} {}", self.size.as_str())
    }
}

/// Of [`remembered`].
const KIND: &str = "scaled";
/// The name of the library's version among the results.
const VERSION: &str = "version";

/// What is known of a GPU, with a version of the library.
#[derive(Debug, Default, PartialEq)]
struct Known {
    version: c_int,
    faster: HashMap<Class, ScaledMultiplier>,
}

/// What is known of a GPU.
#[derive(Debug, Default)]
pub(super) struct Measured {
    known: OnceLock<Mutex<Known>>,
}

impl Kept for Measured {}

impl Measured {
    /// What is known of the device's GPU.
    pub fn of(device: &Device) -> &'static Self {
        device.shared().slot()
    }

    fn known(&self, gpu: &Gpu) -> &Mutex<Known> {
        self.known
            .get_or_init(|| Mutex::new(parse(&remembered::read(gpu, KIND, None))))
    }

    /// Whether hipBLASLt is faster for anything, so that it is worth loading.
    pub fn has_any(&self, gpu: &Gpu) -> bool {
        let known = lock(self.known(gpu));
        let mut values = known.faster.values();
        values.any(|faster| *faster == ScaledMultiplier::Hipblaslt)
    }

    /// Whether hipBLASLt of this version is faster for a class.
    pub fn is_faster(&self, gpu: &Gpu, class: Class, version: c_int) -> bool {
        let known = lock(self.known(gpu));
        known.version == version && known.faster.get(&class) == Some(&ScaledMultiplier::Hipblaslt)
    }

    /// Remembers which is the faster, for this process at once and for later ones if there is a cache on disk. What was
    /// known of another version is forgotten.
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if it cannot be written.
    pub fn insert(
        &self,
        gpu: &Gpu,
        class: Class,
        faster: ScaledMultiplier,
        version: c_int,
    ) -> Result<()> {
        let mut known = lock(self.known(gpu));
        if known.version != version {
            *known = Known {
                version,
                ..Known::default()
            };
        }
        known.faster.insert(class, faster);
        remembered::write(gpu, KIND, None, &results(&known))
    }

    /// Forgets all, on disk as well.
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if the file cannot be removed.
    pub fn clear(&self, gpu: &Gpu) -> Result<()> {
        *lock(self.known(gpu)) = Known::default();
        remembered::remove(gpu, KIND)
    }
}

fn parse(results: &[(String, String)]) -> Known {
    let version = results.iter().find(|(name, _)| name == VERSION);
    let faster = results.iter().filter_map(|(name, value)| {
        let class = Class::all().find(|class| class.to_string() == *name)?;
        let mut all = ScaledMultiplier::ALL.into_iter();
        Some((class, all.find(|who| who.as_str() == value)?))
    });
    Known {
        version: version.and_then(|(_, v)| v.parse().ok()).unwrap_or(0),
        faster: faster.collect(),
    }
}

fn results(known: &Known) -> Vec<(String, String)> {
    let version = (VERSION.to_string(), known.version.to_string());
    let classes = Class::all().filter_map(|class| {
        let faster = known.faster.get(&class)?;
        Some((class.to_string(), faster.to_string()))
    });
    [version].into_iter().chain(classes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let class = Class::new(true, 8);
        assert_eq!(class.to_string(), "rows few");
        let faster = [
            (class, ScaledMultiplier::Hipblaslt),
            (Class::new(false, 512), ScaledMultiplier::Own),
        ];
        let known = Known {
            version: 100_200,
            faster: HashMap::from(faster),
        };
        assert_eq!(parse(&results(&known)), known);
        let damaged = [("rows few", "none"), ("rows", "own"), ("version", "x")];
        let damaged = damaged.map(|(name, who)| (name.to_string(), who.to_string()));
        assert_eq!(parse(&damaged), Known::default());
    }
}
