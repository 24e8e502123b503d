//! What is done to pictures before and after the sampler: they are brought to the request's size, extended, cut out
//! and put back.
//!
//! | Module      | Gives                                                                                   |
//! |-------------|-----------------------------------------------------------------------------------------|
//! | [`options`] | what can be asked for                                                                   |
//! | [`fit`]     | a picture in another size                                                               |
//! | [`blur`]    | masks with soft edges, colours that flow into a mask                                    |
//! | [`region`]  | the part of a picture that a mask needs                                                 |
//! | [`resample`]  | latents in another size                                                                 |
//! | [`resize`]    | pictures in another size, as Pillow resizes them                                        |
//! | [`soft`]    | soft inpainting: grey that mixes in every step                                          |
//! | [`edit`]    | all of it for a request                                                                 |

pub mod blur;
pub mod edit;
pub mod fit;
pub mod options;
pub mod region;
pub mod resample;
pub mod resize;
pub mod soft;

pub use edit::Edit;
pub use options::{Editing, Fill, Fit, Sides};
pub use soft::SoftInpainting;
