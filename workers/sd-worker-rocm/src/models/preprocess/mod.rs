//! Networks that make of a picture what ControlNets want to see.
//!
//! | Module          | Gives                                                                               |
//! |-----------------|-------------------------------------------------------------------------------------|
//! | [`hed`]         | soft edges                                                                          |
//! | [`lineart`]     | line drawings; [`lineart_anime`] those of anime                                     |
//! | [`mlsd`]        | straight lines                                                                      |
//! | [`body`]        | maps of people's joints and limbs                                                   |
//! | [`dpt`]         | depths, through a transformer ([`vit`]), before which may be convolutions ([`bit`]) |
//! | [`layers`]      | layers that these share                                                             |

pub mod bit;
pub mod body;
pub mod dpt;
pub mod hed;
pub mod layers;
pub mod lineart;
pub mod lineart_anime;
pub mod mlsd;
pub mod vit;
