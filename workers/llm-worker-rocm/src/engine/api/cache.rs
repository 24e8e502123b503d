//! How keys and values are stored.

use candle_rocm_flash_attn::paged::{CacheDType, CacheFormat};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The one list of types: variant, the paged cache's type, names (the first is the usual one), and what it is.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $cache:ident, $name:literal $(| $alias:literal)*;)*) => {
        /// How keys, or values, are stored.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum KvDType {
            $($(#[$doc])* $variant,)*
        }

        impl KvDType {
            /// Every type.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// What others call it, too.
            fn by_name(name: &str) -> Option<Self> {
                match name {
                    $($name $(| $alias)* => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }

        impl From<KvDType> for CacheDType {
            fn from(dtype: KvDType) -> Self {
                match dtype { $(KvDType::$variant => Self::$cache,)* }
            }
        }
    };
}

dtypes! {
    /// 4 bytes an element.
    F32 = F32, "f32";
    /// 2 bytes.
    F16 = F16, "f16";
    /// 2 bytes.
    Bf16 = BF16, "bf16";
    /// 8 bits and an f16 factor for 32 elements.
    Q8_0 = Q8_0, "q8_0";
    /// 4 bits and a factor for 32 elements.
    Q4_0 = Q4_0, "q4_0";
    /// 4 bits, and for 32 elements a factor and a least value.
    Q4_1 = Q4_1, "q4_1";
    /// 5 bits and a factor for 32 elements.
    Q5_0 = Q5_0, "q5_0";
    /// 5 bits, and for 32 elements a factor and a least value.
    Q5_1 = Q5_1, "q5_1";
    /// 4 bits for one of 16 levels, and a factor for 32 elements.
    Iq4Nl = Iq4Nl, "iq4_nl";
    /// f8e4m3 and a factor for a head, if its size is a power of two up to 128.
    F8 = F8, "f8_e4m3" | "fp8" | "fp8_e4m3" | "f8e4m3";
}

impl FromStr for KvDType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::by_name(text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|dtype| dtype.name()).collect();
            format!("{text} is not one of {}", names.join(", "))
        })
    }
}

impl std::fmt::Display for KvDType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether keys and values turn before they are stored, so that no element is much larger than the others
/// ([`CacheFormat::turn_keys`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvRotation {
    /// Those of four and five bits.
    #[default]
    Auto,
    /// All that have factors.
    On,
    /// None.
    Off,
}

impl FromStr for KvRotation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("{text} is not one of auto, on, off")),
        }
    }
}

impl std::fmt::Display for KvRotation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl KvRotation {
    /// Whether what is stored in a type turns.
    fn turns(self, dtype: KvDType) -> bool {
        let dtype = CacheDType::from(dtype);
        match self {
            Self::Auto => dtype.is_small(),
            Self::On => dtype.is_quantized(),
            Self::Off => false,
        }
    }
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvTypes {
    /// Keys.
    pub keys: KvDType,
    /// Values.
    pub values: KvDType,
    /// Whether they turn.
    pub rotation: KvRotation,
}

impl KvTypes {
    /// Whether keys and values are stored in a type each, turned, or in fewer than eight bits or f8: as packed caches
    /// are, which have kernels of their own.
    pub fn is_packed(self) -> bool {
        let format = CacheFormat::from(self);
        let has_kernels = !format.keys.is_quantized() || format.keys == CacheDType::Q8_0;
        !has_kernels || format != CacheFormat::from(format.keys)
    }
}

impl From<KvDType> for KvTypes {
    fn from(dtype: KvDType) -> Self {
        Self {
            keys: dtype,
            values: dtype,
            rotation: KvRotation::Auto,
        }
    }
}

impl From<KvTypes> for CacheFormat {
    fn from(types: KvTypes) -> Self {
        Self {
            keys: types.keys.into(),
            values: types.values.into(),
            turn_keys: types.rotation.turns(types.keys),
            turn_values: types.rotation.turns(types.values),
        }
    }
}

impl std::fmt::Display for KvTypes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |dtype: KvDType| match self.rotation.turns(dtype) {
            true => format!("turned {dtype}"),
            false => dtype.to_string(),
        };
        match self.keys == self.values {
            true => f.write_str(&name(self.keys)),
            false => write!(f, "{} and {}", name(self.keys), name(self.values)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_names_that_are_read_back() {
        for dtype in KvDType::ALL {
            assert_eq!(dtype.name().parse(), Ok(*dtype));
        }
        assert_eq!("fp8".parse(), Ok(KvDType::F8));
        let error = "q3_k".parse::<KvDType>().unwrap_err();
        assert!(error.contains("q5_1, iq4_nl, f8_e4m3"), "{error}");
    }

    #[test]
    fn four_and_five_bits_turn_unless_told_otherwise() {
        let types = |keys, values, rotation| KvTypes {
            keys,
            values,
            rotation,
        };
        let mixed = types(KvDType::Q8_0, KvDType::Q4_0, KvRotation::Auto);
        assert_eq!(mixed.to_string(), "q8_0 and turned q4_0");
        assert!(mixed.is_packed());
        let on = types(KvDType::F16, KvDType::Q8_0, KvRotation::On);
        assert_eq!(on.to_string(), "f16 and turned q8_0");
        let off = types(KvDType::Q5_1, KvDType::Q5_1, KvRotation::Off);
        assert_eq!(off.to_string(), "q5_1");
        assert!(off.is_packed());
        assert!(!KvTypes::from(KvDType::Q8_0).is_packed());
        assert!(!KvTypes::from(KvDType::F32).is_packed());
    }
}
