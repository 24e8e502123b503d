//! What the environment asks for: read when a [`Device`](crate::Device) is made, and refused if it is not understood.
//!
//! [`VARIABLES`] is the one table of the variables; the documentation quotes it. A variable that is not set leaves its
//! default. Any value that is not in its list, the empty one included, is an [`Error::InvalidArgument`] that names the
//! variable and its values.

use crate::sys::provided;
use crate::{Error, Result};
use candle_rocm_kernels::{Values, Variable};
use std::ffi::OsString;
use std::fmt;

/// Declares an enum whose values have names, and `NAMES`: these, behind the name for none of them if there is one.
macro_rules! named {
    (
        $(#[$doc:meta])*
        $kind:ident $(or $none:literal)? { $( $(#[$value_doc:meta])* $value:ident = $name:literal, )+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $( $(#[$value_doc])* $value, )+ }

        impl $kind {
            /// Every value.
            pub const ALL: [Self; [$( $name ),+].len()] = [$( Self::$value ),+];
            const NAMES: &'static [&'static str] = &[$( $none, )? $( $name ),+];

            /// The value's name.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$value => $name, )+ }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

named! {
    /// Who drives the GPU.
    Runtime {
        /// AMD's HIP runtime.
        Hip = "hip",
        /// The one in this program, over the kernel driver alone; see [`sys::provide`](crate::sys::provide).
        Kfd = "kfd",
    }
}

named! {
    /// Where buffers come from.
    Allocation {
        /// From blocks that are kept and used again.
        Cached = "cached",
        /// Each from an exact `hipMalloc`, for tools that check bounds.
        Direct = "direct",
    }
}

named! {
    /// How MIOpen is asked for convolutions; see [`miopen`](crate::miopen).
    Mode {
        /// Not at all.
        Off = "off",
        /// Databases and estimates.
        Fast = "fast",
        /// Measurements.
        Tune = "tune",
    }
}

named! {
    /// Who multiplies matrices of floats; see [`blas`](crate::blas).
    Multiplier or "auto" {
        /// rocBLAS, without a look at whether it has kernels for the GPU.
        Rocblas = "rocblas",
        /// Kernels of our own.
        Own = "own",
    }
}

named! {
    /// Who multiplies f8e4m3 with scales; see [`blas::scaled_matmul`](crate::blas::scaled_matmul).
    ScaledMultiplier or "auto" {
        /// hipBLASLt, what it can compute.
        Hipblaslt = "hipblaslt",
        /// Kernels of our own.
        Own = "own",
    }
}

named! {
    /// The ways to multiply a quantized matrix with some columns.
    Path or "auto" {
        /// One pass over the matrix for up to [`MATVEC_MAX_COLUMNS`](crate::ops::quantized::MATVEC_MAX_COLUMNS)
        /// columns.
        Matvec = "matvec",
        /// Matrix instructions, on 8-bit integers but for formats of floats, for up to
        /// [`FEW_MAX_COLUMNS`](crate::ops::quantized::FEW_MAX_COLUMNS) columns.
        Few = "few",
        /// Matrix instructions on f16 for as many columns, of the formats and GPUs that have them.
        Halves = "halves",
        /// Tiles, of 8-bit integers but for formats of floats, for any number of columns.
        Matmul = "matmul",
        /// Tiles of 8-bit floats times 8-bit floats, on GPUs that have instructions for them: forced, for more columns
        /// than [`MATVEC_MAX_COLUMNS`](crate::ops::quantized::MATVEC_MAX_COLUMNS) of matrices in such floats, while all
        /// else is chosen as by default.
        Float8 = "float8",
        /// The matrix as floats of the vectors' dtype, then a product of floats.
        Dequantize = "dequantize",
        /// Matrix and vectors as bf16, then a product with f32 sums and results: for f32 vectors, which it rounds less
        /// than 8 bits do and which, unlike f16, cannot overflow.
        Bf16 = "bf16",
    }
}

impl Path {
    /// The environment variable that forces a path, for tests and tuning.
    pub const VARIABLE: &'static str = QMATMUL.name;
}

named! {
    /// The ways to compute attention, fastest first.
    Tier or "auto" {
        /// Composable Kernel's attention, if the build has it (feature `ck`).
        Ck = "ck",
        /// Matrix instructions (MFMA, WMMA, mma.sync).
        Matrix = "matrix",
        /// Tiles through LDS on any GPU; for few rows, waves that split the keys.
        Tiled = "tiled",
        /// Product, softmax, product, over as many rows at once as memory allows: f64, any head size.
        Naive = "naive",
    }
}

named! {
    /// When kernels and libraries are compared with what they should compute; see [`verify`](crate::verify).
    Verify {
        /// Never.
        Off = "off",
        /// At the first use on a GPU, driver and compiler; what was found is remembered.
        First = "first",
        /// At the first use in each process.
        Always = "always",
    }
}

const fn one_of(
    name: &'static str,
    names: &'static [&'static str],
    default: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable {
        name,
        values: Values::OneOf { names, default },
        meaning,
    }
}

const RUNTIME: Variable = one_of(
    provided::VARIABLE,
    Runtime::NAMES,
    "hip",
    "who drives the GPU: AMD's HIP runtime, or the one of a program built with the feature `kfd`, over the kernel driver alone",
);
const MATMUL: Variable = one_of(
    "CANDLE_ROCM_MATMUL",
    Multiplier::NAMES,
    "auto",
    "who multiplies matrices of floats; auto is rocBLAS where it can work, unless `tune` found our own kernels faster",
);
const FP8_GEMM: Variable = one_of(
    "CANDLE_ROCM_FP8_GEMM",
    ScaledMultiplier::NAMES,
    "auto",
    "who multiplies f8e4m3 with scales of tensors or rows; auto is our own kernels, unless `tune_scaled` found hipBLASLt faster",
);
const QMATMUL: Variable = one_of(
    "CANDLE_ROCM_QMATMUL",
    Path::NAMES,
    "auto",
    "the path of quantized products",
);
const ATTENTION: Variable = one_of(
    "CANDLE_ROCM_ATTENTION",
    Tier::NAMES,
    "auto",
    "the tier of attention; what it cannot compute is an error that says why",
);
const MIOPEN: Variable = one_of(
    "CANDLE_ROCM_MIOPEN",
    Mode::NAMES,
    "fast",
    "convolutions by MIOpen: never, by its estimates, or by what it measures once and remembers",
);
const SYNC: Variable = one_of(
    "CANDLE_ROCM_SYNC",
    &["0", "1"],
    "0",
    "1 waits after every launch, so that an error names its kernel",
);
const ALLOC: Variable = one_of(
    "CANDLE_ROCM_ALLOC",
    Allocation::NAMES,
    "cached",
    "`direct` makes every buffer an allocation of its own, for hunting memory errors",
);

const VERIFY: Variable = one_of(
    "CANDLE_ROCM_VERIFY",
    Verify::NAMES,
    "first",
    "kernels and libraries are compared with what they should compute: never, at the first use ever, or in each process",
);

/// The variables that a device reads. [`candle_rocm_kernels::VARIABLES`] has those that concern the compiling of
/// kernels.
pub const VARIABLES: [Variable; 9] = [
    RUNTIME, MATMUL, FP8_GEMM, QMATMUL, ATTENTION, MIOPEN, SYNC, ALLOC, VERIFY,
];

/// The settings of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Who drives the GPU: decided by the process's first call of the runtime.
    pub runtime: Runtime,
    /// Who multiplies matrices of floats, if not who suits best.
    pub matmul: Option<Multiplier>,
    /// Who multiplies f8e4m3 with scales, if not who was found to be faster.
    pub scaled: Option<ScaledMultiplier>,
    /// The path of quantized products, if not the one that suits best.
    pub quantized: Option<Path>,
    /// The tier of attention, if not the one that suits best.
    pub attention: Option<Tier>,
    /// How MIOpen is asked for convolutions.
    pub miopen: Mode,
    /// Whether to wait after every launch.
    pub synchronize: bool,
    /// Where buffers come from.
    pub allocation: Allocation,
    /// When kernels are verified.
    pub verify: Verify,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            runtime: Runtime::Hip,
            matmul: None,
            scaled: None,
            quantized: None,
            attention: None,
            miopen: Mode::Fast,
            synchronize: false,
            allocation: Allocation::Cached,
            verify: Verify::First,
        }
    }
}

impl Config {
    /// What the environment asks for now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value that a variable does not take.
    pub fn from_env() -> Result<Self> {
        Self::parse(|name| std::env::var_os(name))
    }

    fn parse(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let index = |of: Variable| position(of, variable(of.name));
        // Behind `auto`, which stands first.
        let forced = |of: Variable| index(of).map(|index| index.checked_sub(1));
        Ok(Config {
            runtime: Runtime::ALL[index(RUNTIME)?],
            matmul: forced(MATMUL)?.map(|index| Multiplier::ALL[index]),
            scaled: forced(FP8_GEMM)?.map(|index| ScaledMultiplier::ALL[index]),
            quantized: forced(QMATMUL)?.map(|index| Path::ALL[index]),
            attention: forced(ATTENTION)?.map(|index| Tier::ALL[index]),
            miopen: Mode::ALL[index(MIOPEN)?],
            synchronize: index(SYNC)? == 1,
            allocation: Allocation::ALL[index(ALLOC)?],
            verify: Verify::ALL[index(VERIFY)?],
        })
    }
}

/// Which of the variable's names the value is, or its default.
fn position(variable: Variable, value: Option<OsString>) -> Result<usize> {
    let Values::OneOf { names, default } = variable.values else {
        return Ok(0);
    };
    let wanted = match &value {
        Some(value) => value.to_str(),
        None => Some(default),
    };
    let found = names.iter().position(|name| Some(*name) == wanted);
    found.ok_or_else(|| {
        let (last, others) = names.split_last().unwrap_or((&default, &[]));
        Error::InvalidArgument {
            op: variable.name,
            reason: format!(
                "{:?} is not {} or {last}; unset it for {default}",
                value.unwrap_or_default(),
                others.join(", "),
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<Config> {
        Config::parse(|asked| (asked == name).then(|| value.into()))
    }

    #[test]
    fn what_is_not_set_has_its_default() {
        assert_eq!(Config::parse(|_| None).unwrap(), Config::default());
    }

    #[test]
    fn every_name_of_the_table_is_taken_and_no_other() {
        for variable in VARIABLES {
            let Values::OneOf { names, default } = variable.values else {
                panic!("{} has no list of values", variable.name);
            };
            let configs: Vec<Config> = names
                .iter()
                .map(|name| with(variable.name, name).unwrap())
                .collect();
            for (i, config) in configs.iter().enumerate() {
                assert!(!configs[..i].contains(config), "{}", names[i]);
                assert_eq!(*config == Config::default(), names[i] == default);
            }
            for wrong in ["", "Off", "2", "exhaustive"] {
                let error = with(variable.name, wrong).unwrap_err().to_string();
                let named = [variable.name, &format!("{wrong:?}"), default];
                let told = named.iter().chain(names).all(|word| error.contains(word));
                assert!(told, "{error}");
            }
        }
    }

    #[test]
    fn names_lead_to_their_values() {
        assert_eq!(
            with(MATMUL.name, "own").unwrap().matmul,
            Some(Multiplier::Own)
        );
        assert_eq!(
            with(QMATMUL.name, "bf16").unwrap().quantized,
            Some(Path::Bf16)
        );
        assert_eq!(
            with(ATTENTION.name, "ck").unwrap().attention,
            Some(Tier::Ck)
        );
        assert_eq!(with(MIOPEN.name, "tune").unwrap().miopen, Mode::Tune);
        assert!(with(SYNC.name, "1").unwrap().synchronize);
        let kfd = with(RUNTIME.name, provided::KFD).unwrap();
        assert_eq!(kfd.runtime, Runtime::Kfd);
        let always = with(VERIFY.name, "always").unwrap();
        assert_eq!(always.verify, Verify::Always);
        let direct = with(ALLOC.name, "direct").unwrap();
        assert_eq!(direct.allocation, Allocation::Direct);
    }
}
