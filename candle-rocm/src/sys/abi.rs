//! What this crate believes about the C headers, for `scripts/check-rocm` to compare with the real ones.

use super::hip::{self, DeviceProp};
use super::miopen::{self, AlgorithmPerformance, Solution};
use super::rccl::UniqueId;
use super::{hiprtc, rocblas};
use std::mem::{offset_of, size_of};

/// One belief about a C header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// `sizeof(type)`.
    Size {
        /// Header to include.
        header: &'static str,
        /// C type.
        of: &'static str,
        /// Bytes.
        bytes: usize,
    },
    /// `offsetof(type, field)`.
    Offset {
        /// Header to include.
        header: &'static str,
        /// C type.
        of: &'static str,
        /// Field of it.
        field: &'static str,
        /// Bytes.
        bytes: usize,
    },
    /// Value of an enumerator or macro.
    Value {
        /// Header to include.
        header: &'static str,
        /// C name.
        name: &'static str,
        /// Value.
        value: i64,
    },
}

const HIP: &str = "hip/hip_runtime_api.h";
const HIPRTC: &str = "hip/hiprtc.h";
const ROCBLAS: &str = "rocblas/rocblas.h";
const MIOPEN: &str = "miopen/miopen.h";
const RCCL: &str = "rccl/rccl.h";
const PROP: &str = "hipDeviceProp_tR0600";

/// Every size, offset and value that crosses a library boundary.
pub fn facts() -> Vec<Fact> {
    let offsets = [
        ("name", DeviceProp::NAME),
        ("totalGlobalMem", DeviceProp::TOTAL_GLOBAL_MEM),
        ("sharedMemPerBlock", DeviceProp::SHARED_MEM_PER_BLOCK),
        ("warpSize", DeviceProp::WARP_SIZE),
        ("maxThreadsPerBlock", DeviceProp::MAX_THREADS_PER_BLOCK),
        ("clockRate", DeviceProp::CLOCK_RATE),
        ("multiProcessorCount", DeviceProp::MULTI_PROCESSOR_COUNT),
        ("integrated", DeviceProp::INTEGRATED),
        ("pciBusID", DeviceProp::PCI_BUS_ID),
        ("pciDeviceID", DeviceProp::PCI_DEVICE_ID),
        ("pciDomainID", DeviceProp::PCI_DOMAIN_ID),
        ("memoryClockRate", DeviceProp::MEMORY_CLOCK_RATE),
        ("memoryBusWidth", DeviceProp::MEMORY_BUS_WIDTH),
        ("l2CacheSize", DeviceProp::L2_CACHE_SIZE),
        ("gcnArchName", DeviceProp::GCN_ARCH_NAME),
    ];
    let values: [(&str, &str, i64); 31] = [
        (HIP, "hipSuccess", hip::SUCCESS.into()),
        (HIP, "hipErrorOutOfMemory", hip::ERROR_OUT_OF_MEMORY.into()),
        (
            HIP,
            "hipErrorNotInitialized",
            hip::ERROR_NOT_INITIALIZED.into(),
        ),
        (
            HIP,
            "hipErrorInsufficientDriver",
            hip::ERROR_INSUFFICIENT_DRIVER.into(),
        ),
        (HIP, "hipErrorNoDevice", hip::ERROR_NO_DEVICE.into()),
        (HIP, "hipErrorNotReady", hip::ERROR_NOT_READY.into()),
        (
            HIP,
            "hipMemcpyHostToDevice",
            hip::MEMCPY_HOST_TO_DEVICE.into(),
        ),
        (
            HIP,
            "hipMemcpyDeviceToHost",
            hip::MEMCPY_DEVICE_TO_HOST.into(),
        ),
        (
            HIP,
            "hipMemcpyDeviceToDevice",
            hip::MEMCPY_DEVICE_TO_DEVICE.into(),
        ),
        (HIP, "hipStreamNonBlocking", hip::STREAM_NON_BLOCKING.into()),
        (
            HIP,
            "hipStreamCaptureModeRelaxed",
            hip::STREAM_CAPTURE_MODE_RELAXED.into(),
        ),
        (HIP, "hipEventDefault", hip::EVENT_DEFAULT.into()),
        (
            HIP,
            "hipEventDisableTiming",
            hip::EVENT_DISABLE_TIMING.into(),
        ),
        (HIP, "hipHostMallocDefault", hip::HOST_MALLOC_DEFAULT.into()),
        (HIPRTC, "HIPRTC_SUCCESS", hiprtc::SUCCESS.into()),
        (ROCBLAS, "rocblas_status_success", rocblas::SUCCESS.into()),
        (ROCBLAS, "rocblas_status_invalid_handle", 1),
        (ROCBLAS, "rocblas_status_not_implemented", 2),
        (ROCBLAS, "rocblas_status_invalid_size", 4),
        (ROCBLAS, "rocblas_status_memory_error", 5),
        (ROCBLAS, "rocblas_status_internal_error", 6),
        (
            ROCBLAS,
            "rocblas_operation_none",
            rocblas::OPERATION_NONE.into(),
        ),
        (
            ROCBLAS,
            "rocblas_operation_transpose",
            rocblas::OPERATION_TRANSPOSE.into(),
        ),
        (
            ROCBLAS,
            "rocblas_datatype_f16_r",
            rocblas::DATATYPE_F16.into(),
        ),
        (
            ROCBLAS,
            "rocblas_datatype_f32_r",
            rocblas::DATATYPE_F32.into(),
        ),
        (
            ROCBLAS,
            "rocblas_datatype_f64_r",
            rocblas::DATATYPE_F64.into(),
        ),
        (
            ROCBLAS,
            "rocblas_datatype_bf16_r",
            rocblas::DATATYPE_BF16.into(),
        ),
        (
            ROCBLAS,
            "rocblas_gemm_algo_standard",
            rocblas::GEMM_ALGO_STANDARD.into(),
        ),
        (
            ROCBLAS,
            "rocblas_pointer_mode_host",
            rocblas::POINTER_MODE_HOST.into(),
        ),
        (
            ROCBLAS,
            "rocblas_atomics_not_allowed",
            rocblas::ATOMICS_NOT_ALLOWED.into(),
        ),
        (MIOPEN, "miopenStatusSuccess", miopen::SUCCESS.into()),
    ];
    let size = |header, of, bytes| Fact::Size { header, of, bytes };
    let mut facts = vec![size(HIP, PROP, DeviceProp::SIZE)];
    facts.extend(offsets.map(|(field, bytes)| Fact::Offset {
        header: HIP,
        of: PROP,
        field,
        bytes,
    }));
    facts.extend([
        size(RCCL, "ncclUniqueId", size_of::<UniqueId>()),
        size(MIOPEN, "miopenConvSolution_t", size_of::<Solution>()),
        size(
            MIOPEN,
            "miopenConvAlgoPerf_t",
            size_of::<AlgorithmPerformance>(),
        ),
    ]);
    let solution = [
        ("time", offset_of!(Solution, time)),
        ("workspace_size", offset_of!(Solution, workspace_size)),
        ("solution_id", offset_of!(Solution, solution_id)),
        ("algorithm", offset_of!(Solution, algorithm)),
    ];
    facts.extend(solution.map(|(field, bytes)| Fact::Offset {
        header: MIOPEN,
        of: "miopenConvSolution_t",
        field,
        bytes,
    }));
    facts.extend(values.map(|(header, name, value)| Fact::Value {
        header,
        name,
        value,
    }));
    facts
}
