//! Layers of image models in f32 on the CPU.
//!
//! Products ([`conv`], [`doubled`], [`linear`], [`attention`]) exist for x86 with AVX2 and FMA or with AVX-512, which is found out at
//! run time; elsewhere they are refused ([`has_products`]), and the caller has its own way. What goes over elements
//! ([`group_norm`], [`layer_norm`], [`gate`], [`transpose`]) runs on every processor, with lanes where there are any.
//!
//! Operands are slices of contiguous elements in row-major order. Sums are taken in
//! another order than by plain loops, and products are not rounded before they are added, so results differ from those
//! in the last bits; tests say how far. NaN and infinities go where arithmetic leads them.
//!
//! # Panics
//! Every function panics if the length of a slice is not what the shapes say: callers have checked shapes.

// The kernels consist of such operations from end to end; what each asks of its caller is said above it.
#![allow(unsafe_op_in_unsafe_fn)]

pub mod attention;
pub mod conv;
pub mod doubled;
pub mod gate;
pub mod group_norm;
mod lanes;
pub mod layer_norm;
pub mod linear;
mod parallel;
mod product;
#[cfg(test)]
mod testing;
mod tile;
pub mod transpose;

pub use lanes::has_products;
pub use parallel::{Rayon, Threads};
