use crate::Kind;

/// Why a file cannot be read as a code object.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is something else.
    #[error("{0}, not a code object of an AMD GPU")]
    NotACodeObject(Kind),

    /// A version that is too old or too new.
    #[error("code object version {0}; versions 4 to 6 are read (clang's -mcode-object-version)")]
    Version(u8),

    /// The ELF file is cut off or corrupt.
    #[error("corrupt ELF file: {0}")]
    Elf(#[from] object::Error),

    /// There is no note that describes the kernels.
    #[error("the ELF file has no note with AMDGPU metadata")]
    NoMetadata,

    /// The metadata cannot be decoded.
    #[error("corrupt metadata: {0}")]
    Metadata(String),

    /// Parts that contradict each other.
    #[error("corrupt code object: {0}")]
    Malformed(String),

    /// A kind of relocation that only relocatable files have, by LLVM's number.
    #[error("relocation {0} of AMD GPUs cannot be applied; link the object with ld.lld")]
    Relocation(u32),

    /// Something refers to a symbol that the object does not have.
    #[error("{0} is not defined; link the object with what defines it")]
    Undefined(String),

    /// The bundle is cut off or corrupt.
    #[error("corrupt offload bundle: {0}")]
    Bundle(String),
}
