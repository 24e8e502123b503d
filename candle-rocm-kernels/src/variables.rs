//! The environment variables of this crate: one table for the code and for the documentation.

use std::ffi::OsString;

/// An environment variable that the product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it can be.
    pub values: Values,
    /// What it decides.
    pub meaning: &'static str,
}

/// What an environment variable can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// One of these names.
    OneOf {
        /// All of them.
        names: &'static [&'static str],
        /// The one that holds while the variable is not set.
        default: &'static str,
    },
    /// A value of the user's; an empty one counts as not set.
    Any {
        /// What kind of value, in capitals.
        kind: &'static str,
        /// What holds while the variable is not set.
        default: &'static str,
    },
}

impl Variable {
    /// The value, if the variable is set and not empty.
    pub fn value(&self) -> Option<OsString> {
        std::env::var_os(self.name).filter(|value| !value.is_empty())
    }

    /// The value as text, if it is text and more than spaces.
    pub fn text(&self) -> Option<String> {
        let text = self.value()?.into_string().ok()?;
        Some(text).filter(|text| !text.trim().is_empty())
    }

    /// The variable's row in a table of name, values, default and meaning, in Markdown.
    pub fn row(&self) -> String {
        let (values, default) = match self.values {
            Values::OneOf { names, default } => (names.join(", "), default),
            Values::Any { kind, default } => (kind.to_string(), default),
        };
        format!(
            "| `{}` | {values} | {default} | {} |",
            self.name, self.meaning
        )
    }
}

const fn any(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable {
        name,
        values: Values::Any { kind, default },
        meaning,
    }
}

/// Where [`Cache`](crate::Cache) keeps compiled kernels.
pub const CACHE_DIR: Variable = any(
    "CANDLE_ROCM_CACHE_DIR",
    "FOLDER",
    "`$XDG_CACHE_HOME/candle-rocm`, else `~/.cache/candle-rocm`",
    "where compiled kernels are kept, an absolute path; not used if it belongs to another user or others may write there",
);

/// The compiler of [`Clang::find`](crate::Clang::find).
pub const CLANG: Variable = any(
    "CANDLE_ROCM_CLANG",
    "PROGRAM",
    "`clang++-22`, `clang++` or `amdclang++` on `PATH`",
    "at build time: the clang that compiles embedded kernels",
);

/// The archs whose code objects a build embeds.
pub const ARCHS: Variable = any(
    "CANDLE_ROCM_ARCHS",
    "ARCH,ARCH,…",
    "none",
    "at build time: embed kernels for these archs, such as `gfx942,gfx1100`, or for the `common` ones (needs clang 22)",
);

/// Where the headers of Composable Kernel are.
pub const CK_DIR: Variable = any(
    "CK_DIR",
    "FOLDER",
    "none",
    "at build time, feature `ck`: a ROCm installation or Composable Kernel's sources",
);

/// The archs for which the feature `ck` compiles.
pub const CK_ARCHS: Variable = any(
    "CANDLE_ROCM_CK_ARCHS",
    "ARCH,ARCH,…",
    "those of `CANDLE_ROCM_ARCHS` that have it",
    "at build time, feature `ck`: the archs to compile Composable Kernel's attention for",
);

/// What the feature `ck` passes to clang.
pub const CK_FLAGS: Variable = any(
    "CANDLE_ROCM_CK_FLAGS",
    "FLAGS",
    "none",
    "at build time, feature `ck`: further arguments for clang",
);

/// Every variable of this crate.
pub const VARIABLES: [Variable; 6] = [CACHE_DIR, CLANG, ARCHS, CK_DIR, CK_ARCHS, CK_FLAGS];
