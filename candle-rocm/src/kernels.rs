//! Declared kernels: what there is to launch is known when the crate is compiled.
//!
//! A file of `ops` declares the kernels of its family by [`kernels!`]: their names, with the values that a name is made
//! of, the part of the family that each is in, and their arguments. The macro makes a type of each line, whose `launch`
//! takes exactly these arguments. The loaded function lies in the declaration itself, so that a launch neither makes a
//! string nor searches a map.

use crate::config::Verify;
use crate::declared::{ArgumentType, DeclaredKernel};
use crate::launch::{enqueue, Fault, LaunchConfig};
use crate::pinned::Pinned;
use crate::sys::hip::HipFunction;
use crate::verify::{self, Keep};
use crate::{Buffer, DType, Device, Error, Result, Scalar, View};
use candle_rocm_kernels::shared::Shared;
use std::ffi::c_void;
use std::fmt::Display;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Arguments of a kernel at most.
const MOST_ARGUMENTS: usize = 24;

/// Where the arguments of one launch lie.
pub(crate) struct Params<'a> {
    device: &'a Device,
    addresses: [*mut c_void; MOST_ARGUMENTS],
    count: usize,
    /// Whether the device's error word is among them.
    error_word: bool,
}

impl<'a> Params<'a> {
    pub fn new(device: &'a Device) -> Self {
        Params {
            device,
            addresses: [ptr::null_mut(); MOST_ARGUMENTS],
            count: 0,
            error_word: false,
        }
    }

    /// Adds a value, which must stay where it is until the launch.
    fn add<T>(&mut self, value: &T) {
        self.addresses[self.count] = (&raw const *value).cast_mut().cast();
        self.count += 1;
    }
}

/// What a kernel may take: numbers and structures that it shares with the host, addresses, elements, and several of
/// these at once.
pub(crate) trait Argument {
    /// Adds its type, where elements are of a dtype.
    fn declare(element: Option<DType>, types: &mut Vec<ArgumentType>);

    /// Adds where its value lies, if a launch on the device may have it.
    fn pass(&self, params: &mut Params) -> std::result::Result<(), Fault>;
}

impl<T: Shared> Argument for T {
    fn declare(_: Option<DType>, types: &mut Vec<ArgumentType>) {
        types.push(ArgumentType::of::<T>());
    }

    fn pass(&self, params: &mut Params) -> std::result::Result<(), Fault> {
        params.add(self);
        Ok(())
    }
}

/// The address of a byte of a buffer, or null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ptr<'a> {
    address: *mut c_void,
    buffer: Option<&'a Buffer>,
}

impl<'a> Ptr<'a> {
    /// No buffer.
    pub const NULL: Self = Ptr {
        address: ptr::null_mut(),
        buffer: None,
    };

    /// Host memory that the device reaches; nothing is checked.
    pub fn pinned(memory: &'a Pinned, byte_offset: usize) -> Self {
        Ptr {
            address: memory.as_ptr().wrapping_add(byte_offset).cast(),
            buffer: None,
        }
    }

    /// The start of a buffer.
    pub fn to(buffer: &'a Buffer) -> Self {
        Self::at(buffer, 0)
    }

    /// So many bytes behind the start. A launch fails if that is outside of the buffer.
    pub fn at(buffer: &'a Buffer, byte_offset: usize) -> Self {
        Ptr {
            address: buffer.as_ptr().wrapping_byte_add(byte_offset),
            buffer: Some(buffer),
        }
    }

    /// The first element of a view.
    pub fn of(view: &View<'a>) -> Self {
        Self::at(view.buffer, view.offset * view.dtype.size_in_bytes())
    }

    /// The same, or null without a view.
    pub fn of_optional(view: Option<&View<'a>>) -> Self {
        view.map_or(Self::NULL, Self::of)
    }
}

impl Argument for Ptr<'_> {
    fn declare(_: Option<DType>, types: &mut Vec<ArgumentType>) {
        types.push(ArgumentType::of::<*const c_void>());
    }

    fn pass(&self, params: &mut Params) -> std::result::Result<(), Fault> {
        params.add(&self.address);
        let Some(buffer) = self.buffer else {
            return Ok(());
        };
        let offset = (self.address as usize).wrapping_sub(buffer.as_ptr() as usize);
        if offset > buffer.len() {
            return Err(Fault::PointerOutOfBounds {
                offset,
                bytes: buffer.len(),
            });
        }
        let device = params.device;
        if !buffer.device().same_device(device) {
            return Err(Fault::DifferentDevices);
        }
        params.error_word |= buffer.as_ptr() == device.error_state().ptr();
        Ok(())
    }
}

/// A value of the dtype that a kernel is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element(u64);

impl Element {
    pub fn new(value: Scalar) -> Self {
        Element(value.to_bits())
    }
}

impl Argument for Element {
    fn declare(element: Option<DType>, types: &mut Vec<ArgumentType>) {
        let dtype = element.expect("a kernel that takes elements is declared for dtypes");
        types.push(ArgumentType {
            name: match dtype {
                DType::F32 => "float",
                DType::F64 => "double",
                _ => dtype.as_str(),
            },
            bytes: dtype.size_in_bytes(),
        });
    }

    /// HIP reads as many bytes as the kernel's type has, the lowest first.
    fn pass(&self, params: &mut Params) -> std::result::Result<(), Fault> {
        params.add(&self.0);
        Ok(())
    }
}

/// A value in the names of kernels.
pub(crate) trait Axis: Copy + PartialEq + Display {
    /// Of what dtype elements are in kernels with this value, if it says so.
    fn element(self) -> Option<DType> {
        None
    }
}

impl Axis for DType {
    fn element(self) -> Option<DType> {
        Some(self)
    }
}

impl Axis for u32 {}
impl Axis for &'static str {}

/// What was loaded of a kernel: a function for each GPU that has launched it, and another if that was not verified then.
/// As modules are, it is kept as long as the process runs.
pub(crate) struct Functions(AtomicPtr<Loaded>);

struct Loaded {
    ordinal: usize,
    is_verified: bool,
    function: HipFunction,
    next: *mut Loaded,
}

impl Functions {
    pub const fn new() -> Self {
        Functions(AtomicPtr::new(ptr::null_mut()))
    }

    /// The function for a GPU; one that was not verified only for who does not want that.
    fn get(&self, ordinal: usize, verified: bool) -> Option<HipFunction> {
        let mut at = self.0.load(Ordering::Acquire);
        // SAFETY: links are whole before they are published, do not change, and are never freed.
        while let Some(loaded) = unsafe { at.as_ref() } {
            if loaded.ordinal == ordinal && loaded.is_verified == verified {
                return Some(loaded.function);
            }
            at = loaded.next;
        }
        None
    }

    /// Two threads may add the same function: then one link is never reached.
    fn add(&self, ordinal: usize, is_verified: bool, function: HipFunction) {
        let link = Box::leak(Box::new(Loaded {
            ordinal,
            is_verified,
            function,
            next: self.0.load(Ordering::Acquire),
        }));
        let to: *mut Loaded = link;
        while let Err(first) =
            self.0
                .compare_exchange(link.next, to, Ordering::AcqRel, Ordering::Acquire)
        {
            link.next = first;
        }
    }
}

/// One kernel of a declaration.
#[derive(Clone, Copy)]
pub(crate) struct Declaration {
    pub functions: &'static Functions,
    pub index: usize,
    pub describe: fn(usize) -> DeclaredKernel,
}

impl Declaration {
    /// The function for a device, verified if the device asks for that; `launches` says whether it is launched now.
    fn function(&self, device: &Device, launches: bool) -> Result<HipFunction> {
        let ordinal = device.gpu().ordinal;
        let verified = device.config().verify != Verify::Off;
        if let Some(function) = self.functions.get(ordinal, verified) {
            return Ok(function);
        }
        let admitted = verify::function(device, &self.name_and_part(), launches)?;
        let function = admitted.function.raw;
        match admitted.keep {
            Keep::Verified => self.functions.add(ordinal, true, function),
            Keep::Unverified => self.functions.add(ordinal, false, function),
            Keep::No => {}
        }
        Ok(function)
    }

    /// Whether the kernel may be used, as far as verification is concerned, which this call has done.
    ///
    /// # Errors
    /// Those of compiling and verifying it.
    pub fn works(&self, device: &Device) -> Result<bool> {
        match self.function(device, false) {
            Err(error) if error.is_switched_off() => Ok(false),
            found => found.map(|_| true),
        }
    }

    fn name_and_part(&self) -> DeclaredKernel {
        (self.describe)(self.index)
    }

    pub fn refused(&self, fault: Fault) -> Error {
        fault.into_error(&self.name_and_part().name)
    }

    /// Enqueues the kernel; a grid of 0 does nothing.
    ///
    /// # Safety
    /// `params` are arguments of the declared types, still in place, and what the kernel does with them is sound.
    pub unsafe fn launch(&self, config: LaunchConfig, params: &mut Params) -> Result<()> {
        if config.grid == 0 {
            return Ok(());
        }
        let device = params.device;
        let addresses = &mut params.addresses[..params.count];
        let error_word = params.error_word;
        let function = self.function(device, true)?;
        let name = || self.name_and_part().name;
        // SAFETY: the function was loaded on this device; the rest is the caller's promise.
        unsafe {
            enqueue(
                device,
                function,
                config.into(),
                addresses,
                error_word,
                &name,
            )
        }
    }
}

/// Declares kernels, each line as
///
/// ```text
/// name = "name_in_device_code_{axis}" [axis: Type = values] in family, part axis, only gpus => (argument: Type, …);
/// ```
///
/// where axes, `part` and `only` may be absent, and `only` may be an option. All combinations of the axes' values exist. A line makes a type
/// `name` with `of(axes…)`, which finds the kernel, and its unsafe `launch(device, config, arguments…)`; all lines make
/// `declared()`, every kernel of the file.
macro_rules! kernels {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident = $template:literal $([$($axis:ident: $type:ty = $values:expr),* $(,)?])?
            in $family:expr $(, part $part:expr)? $(, only $only:expr)?
            => ($($argument:ident: $kind:ty),* $(,)?);
    )*) => {
        $(
            $(#[doc = $doc])*
            #[allow(non_camel_case_types)] // it has the kernel's name
            #[derive(Clone, Copy)]
            struct $name {
                index: usize,
            }

            impl $name {
                const COUNT: usize = 1 $($(* $values.len())*)?;

                /// The kernel for these values.
                ///
                /// # Errors
                /// [`Error::InvalidLaunch`](crate::Error::InvalidLaunch) if none is declared.
                fn of($($($axis: $type),*)?) -> crate::Result<Self> {
                    #[allow(unused_mut)] // where there are no axes
                    let mut index = 0;
                    $($(
                        let Some(at) = $values.iter().position(|value| *value == $axis) else {
                            return Err(crate::Error::InvalidLaunch {
                                kernel: format!($template),
                                reason: "no kernel of this name is declared".to_string(),
                            });
                        };
                        index = index * $values.len() + at;
                    )*)?
                    Ok(Self { index })
                }

                fn declaration(self) -> crate::kernels::Declaration {
                    static FUNCTIONS: [crate::kernels::Functions; $name::COUNT] =
                        [const { crate::kernels::Functions::new() }; $name::COUNT];
                    crate::kernels::Declaration {
                        functions: &FUNCTIONS[self.index],
                        index: self.index,
                        describe: Self::describe,
                    }
                }

                fn describe(index: usize) -> crate::DeclaredKernel {
                    // Where there are no axes, nothing changes.
                    #[allow(unused_mut)]
                    let (mut combinations, mut element) = (Self::COUNT, None);
                    debug_assert!(index < combinations);
                    $($(
                        combinations /= $values.len();
                        let $axis: $type = $values[index / combinations % $values.len()];
                        element = element.or(crate::kernels::Axis::element($axis));
                    )*)?
                    let mut arguments = Vec::new();
                    $(<$kind as crate::kernels::Argument>::declare(element, &mut arguments);)*
                    crate::DeclaredKernel {
                        family: $family,
                        name: format!($template),
                        part: None $(.or(Some($part.to_string())))?,
                        only: None $(.or(Into::<Option<crate::Only>>::into($only)))?,
                        arguments,
                    }
                }

                /// Whether the kernel gives right results on the device, so that it may be chosen.
                #[allow(dead_code)] // of kernels that have no other beside them
                fn works(self, device: &crate::Device) -> crate::Result<bool> {
                    device.enter()?;
                    self.declaration().works(device)
                }

                /// Enqueues the kernel on the device's stream; a grid of 0 does nothing.
                ///
                /// # Safety
                /// With these arguments and this many threads, the kernel reads and writes inside of the buffers only.
                #[allow(clippy::too_many_arguments)] // the kernel's
                unsafe fn launch(
                    self,
                    device: &crate::Device,
                    config: crate::LaunchConfig,
                    $($argument: $kind),*
                ) -> crate::Result<()> {
                    let kernel = self.declaration();
                    device.enter()?;
                    let mut params = crate::kernels::Params::new(device);
                    $(
                        crate::kernels::Argument::pass(&$argument, &mut params)
                            .map_err(|fault| kernel.refused(fault))?;
                    )*
                    // SAFETY: these are the declared arguments; what the kernel does with them is the caller's promise.
                    unsafe { kernel.launch(config, &mut params) }
                }
            }
        )*

        /// Every kernel that is declared here.
        pub(in crate::ops) fn declared() -> Vec<crate::DeclaredKernel> {
            let mut kernels = Vec::new();
            $(kernels.extend((0..$name::COUNT).map($name::describe));)*
            kernels
        }
    };
}

pub(crate) use kernels;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_a_function_for_each_gpu() {
        let functions = Functions::new();
        assert_eq!(functions.get(0, true), None);
        let handle = |n: usize| ptr::without_provenance_mut::<c_void>(n);
        std::thread::scope(|scope| {
            for ordinal in 0..8 {
                let functions = &functions;
                scope.spawn(move || functions.add(ordinal, true, handle(100 + ordinal)));
            }
        });
        for ordinal in 0..8 {
            assert_eq!(functions.get(ordinal, true), Some(handle(100 + ordinal)));
        }
        assert_eq!(functions.get(8, true), None);
        // What was not verified is not for who wants that.
        assert_eq!(functions.get(3, false), None);
        functions.add(3, false, handle(7));
        assert_eq!(functions.get(3, false), Some(handle(7)));
        assert_eq!(functions.get(3, true), Some(handle(103)));
    }
}
