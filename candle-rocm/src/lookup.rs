//! Kernels of a device, loaded when they are first used.

use crate::{verify, DeclaredKernel, Device, Kernel, Result};
use candle_rocm_kernels::CkInstance;

impl Device {
    /// A kernel of this product, one of [`ops::kernels`](crate::ops::kernels). The first use of a family or a part of
    /// it loads it, or compiles it if this machine has not done so before; the first use of the kernel verifies it.
    ///
    /// # Errors
    /// [`Error::Compile`](crate::Error::Compile), [`Error::SwitchedOff`](crate::Error::SwitchedOff).
    pub fn kernel(&self, kernel: &DeclaredKernel) -> Result<Kernel> {
        self.enter()?;
        let admitted = verify::function(self, kernel, true)?;
        Ok(Kernel::new(self, admitted.function))
    }

    /// A kernel of the caller's HIP source, an `extern "C" __global__` function. The source may include
    /// `"device.h"`. It is compiled once per machine; keep the kernel to save looking it up.
    ///
    /// # Errors
    /// [`Error::Compile`](crate::Error::Compile) with the compiler's messages.
    pub fn custom_kernel(&self, source: &str, name: &str) -> Result<Kernel> {
        self.enter()?;
        let function = self.shared().modules.custom(self.gpu(), source, name)?;
        Ok(Kernel::new(self, function))
    }

    /// The kernel of Composable Kernel's attention for what `instance` says; there is one if the build made it for this
    /// arch.
    pub(crate) fn ck_kernel(&self, instance: CkInstance) -> Result<Kernel> {
        self.enter()?;
        verify::check_composable(self, instance)?;
        let function = self.shared().modules.ck(self.gpu(), instance)?;
        Ok(Kernel::new(self, function))
    }
}
