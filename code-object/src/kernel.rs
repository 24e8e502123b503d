//! What metadata and descriptor say of a kernel.

use crate::{Descriptor, Error};
use serde::{Deserialize, Serialize};

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Argument {
    /// Its name; compilers write it for debug builds only.
    #[serde(rename(deserialize = ".name"), default)]
    pub name: Option<String>,
    /// Where it begins, in bytes.
    #[serde(rename(deserialize = ".offset"))]
    pub offset: u32,
    /// Its size in bytes.
    #[serde(rename(deserialize = ".size"))]
    pub size: u32,
    /// What it is: `by_value`, `global_buffer`, `hidden_block_count_x`, …
    #[serde(rename(deserialize = ".value_kind"))]
    pub value_kind: String,
}

impl Argument {
    /// Whether the runtime passes it, and not who launches.
    pub fn is_hidden(&self) -> bool {
        self.value_kind.starts_with("hidden_")
    }
}

/// A kernel of a code object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Name of its descriptor's symbol.
    pub symbol: String,
    /// Arguments in order, without those that the runtime passes.
    pub arguments: Vec<Argument>,
    /// Arguments that the runtime passes behind these.
    pub hidden_arguments: Vec<Argument>,
    /// Size of all arguments, in bytes.
    pub argument_bytes: u32,
    /// Vector registers of a lane, accumulation registers included where they are of the same file.
    pub vgprs: u32,
    /// Accumulation registers of a lane.
    pub agprs: u32,
    /// Scalar registers of a wave.
    pub sgprs: u32,
    /// Vector registers that did not fit.
    pub vgpr_spills: u32,
    /// Scalar registers that did not fit.
    pub sgpr_spills: u32,
    /// Static LDS of a block, in bytes.
    pub lds_bytes: u32,
    /// Scratch memory of a lane, in bytes.
    pub scratch_bytes: u32,
    /// Whether it needs a stack whose size is not known.
    pub dynamic_stack: bool,
    /// Lanes of a wave.
    pub wave_size: u32,
    /// Threads of a block at most.
    pub max_block: u32,
    /// Dimensions that each of its blocks must have.
    pub required_block: Option<[u32; 3]>,
    /// Waves that a SIMD holds at once, by registers and static LDS, with blocks as large as the kernel allows; none
    /// for a processor whose limits are not known.
    pub waves_per_simd: Option<u32>,
    /// What the hardware is set up with; none if the object has no such symbol.
    pub descriptor: Option<Descriptor>,
}

impl Kernel {
    /// Registers that did not fit.
    pub fn spills(&self) -> u32 {
        self.vgpr_spills.saturating_add(self.sgpr_spills)
    }
}

/// The metadata of a code object, as far as it is used.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    #[serde(rename = "amdhsa.version")]
    pub version: (u32, u32),
    #[serde(rename = "amdhsa.target", default)]
    pub target: Option<String>,
    #[serde(rename = "amdhsa.kernels")]
    pub kernels: Vec<KernelMetadata>,
}

#[derive(Deserialize)]
pub(crate) struct KernelMetadata {
    #[serde(rename = ".name")]
    pub name: String,
    #[serde(rename = ".symbol")]
    pub symbol: String,
    #[serde(rename = ".args", default)]
    pub args: Vec<Argument>,
    #[serde(rename = ".kernarg_segment_size")]
    pub kernarg_segment_size: u32,
    #[serde(rename = ".group_segment_fixed_size")]
    pub group_segment_fixed_size: u32,
    #[serde(rename = ".private_segment_fixed_size")]
    pub private_segment_fixed_size: u32,
    #[serde(rename = ".wavefront_size")]
    pub wavefront_size: u32,
    #[serde(rename = ".max_flat_workgroup_size")]
    pub max_flat_workgroup_size: u32,
    #[serde(rename = ".reqd_workgroup_size", default)]
    pub reqd_workgroup_size: Option<[u32; 3]>,
    #[serde(rename = ".vgpr_count", default)]
    pub vgpr_count: Option<u32>,
    #[serde(rename = ".agpr_count", default)]
    pub agpr_count: Option<u32>,
    #[serde(rename = ".sgpr_count", default)]
    pub sgpr_count: Option<u32>,
    #[serde(rename = ".vgpr_spill_count", default)]
    pub vgpr_spill_count: u32,
    #[serde(rename = ".sgpr_spill_count", default)]
    pub sgpr_spill_count: u32,
    #[serde(rename = ".uses_dynamic_stack", default)]
    pub uses_dynamic_stack: bool,
}

impl Metadata {
    /// Decodes msgpack.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        /// Metadata has five levels.
        const MOST_LEVELS: usize = 16;
        let mut decoder = rmp_serde::Deserializer::from_read_ref(bytes);
        decoder.set_max_depth(MOST_LEVELS);
        let metadata = Metadata::deserialize(&mut decoder)
            .map_err(|error| Error::Metadata(error.to_string()))?;
        match metadata.version {
            (1, _) => Ok(metadata),
            (major, minor) => Err(Error::Metadata(format!(
                "version {major}.{minor} of its format is not known"
            ))),
        }
    }
}

impl KernelMetadata {
    /// Without occupancy, which the processor decides. Counts of registers that are missing here come from the
    /// descriptor, which has them rounded up to what is allocated.
    pub fn into_kernel(self, descriptor: Option<Descriptor>) -> Result<Kernel, Error> {
        let count = |given: Option<u32>, allocated: fn(&Descriptor) -> u32, what: &str| {
            given
                .or_else(|| descriptor.as_ref().map(allocated))
                .ok_or_else(|| Error::Metadata(format!("{} has no count of {what}", self.name)))
        };
        let vgprs = count(self.vgpr_count, |d| d.vgprs, "vector registers")?;
        let sgprs = count(self.sgpr_count, |d| d.sgprs, "scalar registers")?;
        let (hidden_arguments, arguments) = self.args.into_iter().partition(Argument::is_hidden);
        Ok(Kernel {
            name: self.name,
            symbol: self.symbol,
            hidden_arguments,
            arguments,
            argument_bytes: self.kernarg_segment_size,
            vgprs,
            agprs: self.agpr_count.unwrap_or(0),
            sgprs,
            vgpr_spills: self.vgpr_spill_count,
            sgpr_spills: self.sgpr_spill_count,
            lds_bytes: self.group_segment_fixed_size,
            scratch_bytes: self.private_segment_fixed_size,
            dynamic_stack: self.uses_dynamic_stack,
            wave_size: self.wavefront_size,
            max_block: self.max_flat_workgroup_size,
            required_block: self.reqd_workgroup_size,
            waves_per_simd: None,
            descriptor,
        })
    }
}
