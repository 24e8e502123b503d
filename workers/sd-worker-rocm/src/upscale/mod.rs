//! Pictures made larger: by filters, or by networks in tiles.
//!
//! | Module      | Gives                                                                                   |
//! |-------------|-----------------------------------------------------------------------------------------|
//! | [`method`]  | the ways, by name                                                                       |
//! | [`network`] | a network from a file, at work                                                          |
//! | [`seamless`]| pictures whose edges meet                                                               |
//! | [`tiles`]   | tiles, and how they are joined without seams                                            |
//! | [`folders`] | the networks that clients may name                                                      |

pub mod folders;
pub mod method;
pub mod network;
pub mod seamless;
pub mod tiles;

pub use folders::UpscalerFolders;
pub use method::Method;
pub use network::Network;
pub use seamless::enlarge_seamless;
pub use tiles::Tiling;

use crate::editing::resize::Filter;
use image::RgbImage;
use std::ops::ControlFlow;
use worker::{Error, Result};

/// Passes of a network at most: what is still too small then is stretched.
const MOST_PASSES: usize = 3;

/// Most pixels of a picture that is made, also between two passes.
pub const MAX_PIXELS: u64 = 1 << 27;

/// The size of a picture that is made larger by a factor.
///
/// # Errors
/// [`Error::Usage`] for a factor or a size beyond all measure.
pub fn scaled((width, height): (u32, u32), scale: f64) -> Result<(u32, u32)> {
    let side = |side: u32| (f64::from(side) * scale).round();
    let (width, height) = (side(width), side(height));
    if !scale.is_finite() || width < 1.0 || height < 1.0 || width * height > MAX_PIXELS as f64 {
        return Err(Error::Usage(format!(
            "a scale of {scale} makes {width} x {height} pixels; at most {MAX_PIXELS} are made"
        )));
    }
    Ok((width as u32, height as u32))
}

/// A picture of this size, by a network where there is one: it is applied until the picture is large enough, three times
/// at most; then the picture is brought to the size by `filter`. `progress` is told tiles done and in all, and may
/// break off: then there is no picture.
///
/// # Errors
/// The device's, and [`Error::Usage`] for more pixels than are made.
pub fn enlarge(
    picture: &RgbImage,
    network: Option<(&mut Network, &Tiling)>,
    filter: Filter,
    (width, height): (u32, u32),
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Option<RgbImage>> {
    let mut larger = picture.clone();
    if let Some((network, tiling)) = network {
        let scale = network.scale();
        let small = |size: (u32, u32)| size.0 < width || size.1 < height;
        // One that keeps the size mends the picture: once.
        let mut sizes = vec![larger.dimensions()];
        while sizes.len() <= MOST_PASSES {
            let size = sizes[sizes.len() - 1];
            let first = sizes.len() == 1;
            if !(small(size) && (scale > 1 || first) || first && scale == 1) {
                break;
            }
            sizes.push(scaled(size, scale as f64)?);
        }
        let passes = &sizes[..sizes.len() - 1];
        let total = passes.iter().map(|size| tiling.count(*size)).sum();
        let mut done = 0;
        for size in passes {
            let mut told = |tiles| progress(done + tiles, total);
            match network.run(&larger, tiling, &mut told)? {
                Some(picture) => larger = picture,
                None => return Ok(None),
            }
            done += tiling.count(*size);
        }
    }
    Ok(Some(match larger.dimensions() == (width, height) {
        true => larger,
        false => filter.resize(&larger, width, height),
    }))
}
