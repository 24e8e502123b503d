//! One definition for Rust and C++.

use std::ffi::c_void;

/// A type that is the same in Rust and in device code.
pub trait Shared {
    /// Its name in C++.
    const NAME: &'static str;

    /// The C++ declaration of `name` as this type.
    fn declare(name: &str) -> String {
        format!("{} {name}", Self::NAME)
    }
}

macro_rules! numbers {
    ($($number:ty = $name:literal),* $(,)?) => {
        $(impl Shared for $number { const NAME: &'static str = $name; })*
    };
}

numbers!(
    u8 = "u8",
    i16 = "i16",
    u32 = "u32",
    i32 = "i32",
    u64 = "u64",
    i64 = "i64",
    f32 = "float",
    f64 = "double",
    c_void = "void",
);

impl<T: Shared, const N: usize> Shared for [T; N] {
    const NAME: &'static str = T::NAME;

    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }
}

/// Addresses in device memory.
impl<T: Shared> Shared for *const T {
    const NAME: &'static str = "*";

    fn declare(name: &str) -> String {
        format!("const {}", T::declare(&format!("*{name}")))
    }
}

impl<T: Shared> Shared for *mut T {
    const NAME: &'static str = "*";

    fn declare(name: &str) -> String {
        T::declare(&format!("*{name}"))
    }
}

/// Short names of numbers, for headers that are compiled without `device.h`, too.
pub(super) const TYPES: &str =
    "using u8 = unsigned char;\nusing i16 = short;\nusing u32 = unsigned int;\nusing i32 = int;\n\
    using u64 = unsigned long long;\nusing i64 = long long;\n";

/// Defines constants and structures (`repr(C)`, all fields public) in Rust, and `header`, which gives them in C++,
/// without their documentation: kernels are compiled anew when a header changes.
macro_rules! shared {
    (@ [$($text:expr,)*]) => {
        /// The module in C++.
        pub fn header() -> String {
            let mut header = String::from("#pragma once\nnamespace device {\n");
            header.push_str($crate::shared::definition::TYPES);
            $(header.push_str(&$text);)*
            header.push_str("}  // namespace device\n");
            header
        }
    };
    (@ [$($text:expr,)*] $(#[doc = $doc:literal])* const $name:ident: $type:ty = $value:expr; $($rest:tt)*) => {
        $(#[doc = $doc])*
        pub const $name: $type = $value;
        $crate::shared::definition::shared!(@ [$($text,)* {
            let name = <$type as $crate::shared::Shared>::declare(stringify!($name));
            format!("constexpr {name} = {};\n", $name)
        },] $($rest)*);
    };
    (@ [$($text:expr,)*] $(#[doc = $doc:literal])* $(#[derive($($derive:ident),*)])? $(#[align($align:literal)])?
        struct $name:ident { $($(#[doc = $field_doc:literal])* $field:ident: $type:ty,)* } $($rest:tt)*) => {
        $(#[doc = $doc])*
        #[allow(missing_docs)] // the names of fields without a line say it
        #[derive(Clone, Copy, Debug, PartialEq $($(, $derive)*)?)]
        #[repr(C $(, align($align))?)]
        pub struct $name {
            $($(#[doc = $field_doc])* pub $field: $type,)*
        }

        impl $crate::shared::Shared for $name {
            const NAME: &'static str = stringify!($name);
        }

        $crate::shared::definition::shared!(@ [$($text,)* {
            let mut text = String::from(concat!("struct ", $("alignas(", $align, ") ",)? stringify!($name), " {\n"));
            $(
                text.push_str(&format!("    {};\n", <$type as $crate::shared::Shared>::declare(stringify!($field))));
            )*
            text.push_str("};\n");
            // What both sides take a structure for, they must lay out alike.
            let (name, bytes) = (stringify!($name), size_of::<$name>());
            text.push_str(&format!("static_assert(sizeof({name}) == {bytes}, \"its size in Rust\");\n"));
            text
        },] $($rest)*);
    };
    ($($rest:tt)*) => {
        $crate::shared::definition::shared!(@ [] $($rest)*);
    };
}

pub(super) use shared;
