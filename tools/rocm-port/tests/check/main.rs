//! `check` on units written by hand: right kernels pass, and each planted fault is found and made small.

mod faults;
mod program;
mod right;
mod units;
