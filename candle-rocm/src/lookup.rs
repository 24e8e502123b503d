//! Kernels of a device, found by name.

use crate::{Device, Kernel, Result};
use candle_rocm_kernels::{CkInstance, Family};

impl Device {
    /// A kernel of this product. The first use of a family loads it, or compiles it if this machine
    /// has not done so before.
    ///
    /// # Errors
    /// [`Error::Compile`].
    pub fn kernel(&self, family: Family, name: &str) -> Result<Kernel> {
        self.enter()?;
        let function = self.shared().modules.family(self.gpu(), family, name)?;
        Ok(Kernel::new(self, function))
    }

    /// A kernel of the caller's HIP source, an `extern "C" __global__` function. The source may include
    /// `"device.h"`. It is compiled once per machine; keep the kernel to save looking it up.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's messages.
    pub fn custom_kernel(&self, source: &str, name: &str) -> Result<Kernel> {
        self.enter()?;
        let function = self.shared().modules.custom(self.gpu(), source, name)?;
        Ok(Kernel::new(self, function))
    }

    /// The kernel of Composable Kernel's attention for what `instance` says; there is one if the build made it for this arch.
    pub(crate) fn ck_kernel(&self, instance: CkInstance) -> Result<Kernel> {
        self.enter()?;
        let function = self.shared().modules.ck(self.gpu(), instance)?;
        Ok(Kernel::new(self, function))
    }
}
