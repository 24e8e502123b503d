//! The library headers (`port/cub.h` and its kin): each primitive against a reference in Rust, on the simulator in waves of
//! 64 and 32 with every access checked, in more than one order of threads; and what clang makes of all of it.

mod compile;
mod device;
mod generators;
mod groups;
mod items;
mod matrix;
mod order;
mod page;
mod random;
mod reduce;
mod sort;
mod thrust;
mod warps;
