//! Functions that candle-rocm does not call.

use crate::cuda::remember;
use hip_abi::error::{hipError_t, HipError};

/// Defines functions that answer `hipErrorNotSupported`, whatever their arguments.
macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            #[no_mangle]
            pub extern "C" fn $name() -> hipError_t {
                remember(HipError::NotSupported as hipError_t)
            }
        )*
    };
}

unsupported! {
    hipDeviceGet
    hipDeviceGetAttribute
    hipDeviceGetName
    hipDeviceGetStreamPriorityRange
    hipDeviceReset
    hipDeviceTotalMem
    hipDriverGetVersion
    hipEventCreate
    hipFuncGetAttribute
    hipGraphExecUpdate
    hipGraphGetNodes
    hipGraphInstantiateWithFlags
    hipMemcpy
    hipMemcpyDtoD
    hipMemcpyDtoDAsync
    hipMemcpyDtoH
    hipMemcpyDtoHAsync
    hipMemcpyHtoD
    hipMemcpyHtoDAsync
    hipMemset
    hipMemsetD16Async
    hipMemsetD32Async
    hipModuleGetGlobal
    hipModuleLoadDataEx
    hipPeekAtLastError
    hipPointerGetAttributes
    hipStreamCreate
    hipStreamCreateWithPriority
    hipStreamGetDevice
    hipStreamGetFlags
    hipStreamGetPriority
    hipStreamIsCapturing
}
