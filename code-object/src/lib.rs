//! What AMDGPU code objects say of their kernels: arguments, registers, LDS, scratch, wave size, and the processor that
//! they are for.
//!
//! A code object is an ELF file. Its note holds metadata in msgpack, its symbols `<kernel>.kd` are the descriptors that
//! the hardware is set up from; both are described in LLVM's [AMDGPUUsage](https://llvm.org/docs/AMDGPUUsage.html).
//! [`CodeObject::parse`] reads versions 4 to 6; [`read`] also takes the bundles that clang makes of several objects.
//! [`select`] takes the object for a GPU out of one. [`load`] is for who loads an object without HIP: it also gives what
//! its memory holds.
//!
//! Input need not be trusted: what is malformed is an [`Error`], and memory stays within a small multiple of the input
//! (for compressed bundles, of [`MAX_UNPACKED`]).
//!
//! ```
//! # fn main() -> Result<(), code_object::Error> {
//! let file = include_bytes!("../tests/fixtures/gfx1100.elf");
//! let object = code_object::CodeObject::parse(file)?;
//! assert_eq!(object.target.processor(), "gfx1100");
//! for kernel in &object.kernels {
//!     println!("{} takes {} bytes of LDS", kernel.name, kernel.lds_bytes);
//! }
//! # Ok(())
//! # }
//! ```

mod bundle;
mod descriptor;
mod elf;
mod error;
mod image;
mod kernel;
mod kind;
mod occupancy;
mod print;
mod processor;
mod target;

pub use bundle::{compressed_bytes, read, select, Entry, COMPRESSED_HEADER, MAX_UNPACKED};
pub use descriptor::Descriptor;
pub use elf::CodeObject;
pub use error::Error;
pub use image::{load, Image, Symbol, IMAGE_ALIGNMENT, MAX_ZEROS};
pub use kernel::{Argument, Kernel};
pub use kind::Kind;
pub use print::{json, text, Facts};
pub use processor::{Processor, PROCESSORS};
pub use target::{Setting, TargetId};
