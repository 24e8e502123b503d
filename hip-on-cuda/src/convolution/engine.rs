//! Which of cuDNN's engines are offered, and what MIOpen would call their algorithms.

use hip_abi::miopen::Type;
use std::ffi::c_int;

/// `miopenConvolutionAlgoFFT`, `-Winograd` and `-ImplicitGEMM`.
const FFT: c_int = 2;
const WINOGRAD: c_int = 3;
const IMPLICIT_GEMM: c_int = 5;

/// `cudnnBackendNumericalNote_t`, as far as it matters.
pub(super) mod note {
    pub const TENSOR_CORE: i32 = 0;
    pub const DOWN_CONVERT_INPUTS: i32 = 1;
    pub const REDUCED_PRECISION_REDUCTION: i32 = 2;
    pub const FFT: i32 = 3;
    pub const NONDETERMINISTIC: i32 = 4;
    pub const WINOGRAD: i32 = 5;
    /// How many there are.
    pub const COUNT: usize = 16;
}

/// Whether an engine computes as MIOpen would: sums in f32, and f32 as such, which tensor cores do not.
pub(super) fn admits(notes: &[c_int], element: Type, deterministic: bool) -> bool {
    let has = |note| notes.contains(&note);
    !(has(note::DOWN_CONVERT_INPUTS)
        || has(note::REDUCED_PRECISION_REDUCTION)
        || element == Type::F32 && has(note::TENSOR_CORE)
        || deterministic && has(note::NONDETERMINISTIC))
}

/// `miopenConvAlgorithm_t` of an engine.
pub(super) fn algorithm(notes: &[c_int]) -> c_int {
    if notes.contains(&note::WINOGRAD) {
        WINOGRAD
    } else if notes.contains(&note::FFT) {
        FFT
    } else {
        IMPLICIT_GEMM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_is_not_computed_in_less() {
        let tensor_cores = [note::TENSOR_CORE];
        assert!(admits(&tensor_cores, Type::F16, true));
        assert!(admits(&tensor_cores, Type::Bf16, true));
        assert!(!admits(&tensor_cores, Type::F32, true));
        assert!(admits(&[note::WINOGRAD], Type::F32, true));
        for element in [Type::F16, Type::Bf16, Type::F32] {
            assert!(!admits(&[note::DOWN_CONVERT_INPUTS], element, false));
            assert!(!admits(
                &[note::REDUCED_PRECISION_REDUCTION],
                element,
                false
            ));
        }
    }

    #[test]
    fn sums_in_any_order_only_if_that_was_not_forbidden() {
        assert!(!admits(&[note::NONDETERMINISTIC], Type::F16, true));
        assert!(admits(&[note::NONDETERMINISTIC], Type::F16, false));
    }
}
