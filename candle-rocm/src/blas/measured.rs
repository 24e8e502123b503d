//! Which is the faster for which products, rocBLAS or kernels of our own, where that was measured on the GPU at hand.

use crate::config::Multiplier;
use crate::gpu::Gpu;
use crate::slots::Kept;
use crate::sync::lock;
use crate::{remembered, DType, Device, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, OnceLock};

/// How many rows or columns a product has, whichever is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// Up to 8: a matrix times a few vectors, bound by memory.
    Few,
    /// Up to 128.
    Narrow,
    /// More.
    Wide,
}

impl Size {
    /// Every size.
    pub const ALL: [Self; 3] = [Size::Few, Size::Narrow, Size::Wide];

    pub(super) fn of(least: usize) -> Self {
        match least {
            0..=8 => Size::Few,
            9..=128 => Size::Narrow,
            _ => Size::Wide,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Size::Few => "few",
            Size::Narrow => "narrow",
            Size::Wide => "wide",
        }
    }
}

/// Products that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// Of the operands.
    pub dtype: DType,
    /// Whether the operands are stored transposed: their columns, not their rows, lie dense.
    pub transposed: [bool; 2],
    /// How many rows or columns.
    pub size: Size,
}

impl Class {
    /// The class of products with operands that lie so, and the less of rows and columns.
    pub fn of(dtype: DType, transposed: [bool; 2], least: usize) -> Self {
        Class {
            dtype,
            transposed,
            size: Size::of(least),
        }
    }

    /// Every class.
    fn all() -> impl Iterator<Item = Self> {
        let dtypes = [DType::F16, DType::BF16, DType::F32, DType::F64];
        let ways = [[false, false], [false, true], [true, false], [true, true]];
        dtypes.into_iter().flat_map(move |dtype| {
            ways.into_iter().flat_map(move |transposed| {
                Size::ALL.map(|size| Class {
                    dtype,
                    transposed,
                    size,
                })
            })
        })
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [left, right] = self.transposed.map(|t| if t { 't' } else { 'n' });
        write!(f, "{} {left}{right} {}", self.dtype, self.size.as_str())
    }
}

/// What is known of a GPU.
#[derive(Debug, Default)]
pub(super) struct Measured {
    known: OnceLock<Mutex<HashMap<Class, Multiplier>>>,
}

impl Kept for Measured {}

/// Of [`remembered`].
const KIND: &str = "matmul";

impl Measured {
    fn known(&self, gpu: &Gpu) -> &Mutex<HashMap<Class, Multiplier>> {
        self.known
            .get_or_init(|| Mutex::new(parse(&remembered::read(gpu, KIND, None))))
    }

    /// What is known of the device's GPU.
    pub fn of(device: &Device) -> &'static Self {
        device.shared().slot()
    }

    /// Which is the faster for a class, if it was measured.
    pub fn get(&self, gpu: &Gpu, class: Class) -> Option<Multiplier> {
        lock(self.known(gpu)).get(&class).copied()
    }

    /// Remembers which is the faster, for this process at once and for later ones if there is a cache on disk.
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if it cannot be written.
    pub fn insert(&self, gpu: &Gpu, class: Class, faster: Multiplier) -> Result<()> {
        let mut known = lock(self.known(gpu));
        known.insert(class, faster);
        remembered::write(gpu, KIND, None, &results(&known))
    }

    /// Forgets all, on disk as well.
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if the file cannot be removed.
    pub fn clear(&self, gpu: &Gpu) -> Result<()> {
        lock(self.known(gpu)).clear();
        remembered::remove(gpu, KIND)
    }
}

fn parse(results: &[(String, String)]) -> HashMap<Class, Multiplier> {
    let known = results.iter().filter_map(|(name, value)| {
        let class = Class::all().find(|class| class.to_string() == *name)?;
        let faster = Multiplier::ALL
            .into_iter()
            .find(|who| who.as_str() == value)?;
        Some((class, faster))
    });
    known.collect()
}

fn results(known: &HashMap<Class, Multiplier>) -> Vec<(String, String)> {
    let known = Class::all().filter_map(|class| {
        let faster = known.get(&class)?;
        Some((class.to_string(), faster.to_string()))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let class = Class::of(DType::F16, [false, true], 8);
        assert_eq!(class.to_string(), "f16 nt few");
        let wide = Class::of(DType::F32, [true, false], 512);
        let known = HashMap::from([(class, Multiplier::Own), (wide, Multiplier::Rocblas)]);
        assert_eq!(parse(&results(&known)), known);
        let damaged = [("f16 nt few", "none"), ("f16 nt", "own")];
        let damaged = damaged.map(|(name, who)| (name.to_string(), who.to_string()));
        assert!(parse(&damaged).is_empty());
    }
}
