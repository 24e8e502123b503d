//! Plain numbers in memory, or where a file has them.

use half::{bf16, f16};
use std::marker::PhantomData;
use std::ops::Deref;
use worker::gguf::SharedBytes;

/// Numbers of which every bit pattern is one.
pub(super) trait Plain: Copy {}

impl Plain for f32 {}
impl Plain for f16 {}
impl Plain for bf16 {}

/// Numbers, owned or somebody else's.
pub(super) enum Numbers<T> {
    Own(Vec<T>),
    Shared(SharedBytes, PhantomData<T>),
}

impl<T: Plain> Numbers<T> {
    /// Those of bytes in the order of this machine; none if they do not begin where such numbers may.
    pub(super) fn shared(bytes: SharedBytes) -> Option<Self> {
        let fits = bytes.as_ptr().cast::<T>().is_aligned() && cfg!(target_endian = "little");
        fits.then_some(Self::Shared(bytes, PhantomData))
    }
}

impl<T: Plain> Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Own(numbers) => numbers,
            // SAFETY: the bytes are aligned for the type, as was checked, and stay as long as `self`; every bit pattern
            // is a number.
            Self::Shared(bytes, _) => unsafe {
                std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>())
            },
        }
    }
}
