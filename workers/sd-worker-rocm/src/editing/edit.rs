//! A request's picture made ready for the sampler, and the sampler's pictures put back.

use super::blur::{blurred, filled};
use super::fit::{extended, fitted, put, stretched};
use super::options::{Editing, Fill, Fit, Sides};
use super::region::Region;
use crate::request::{Hidden, ImageRequest, Init};
use image::imageops::{self, FilterType};
use image::{GrayImage, Luma, RgbImage};

/// A request whose picture is ready, and what its pictures are put back into.
pub struct Edit {
    /// Picture and mask are of its size, unless latents are to be stretched; nothing is left to be done to them.
    pub request: ImageRequest,
    under: Option<Under>,
}

/// What lies under the new pictures.
struct Under {
    picture: RgbImage,
    /// White is painted.
    mask: GrayImage,
    /// Where the new pictures belong, if they are not all of it.
    region: Option<Region>,
}

impl Edit {
    /// What a request asks for; `None` if it starts from no picture.
    pub fn of(request: &ImageRequest) -> Option<Self> {
        let init = request.init.as_ref()?;
        let (width, height) = (request.width as u32, request.height as u32);
        let Editing {
            fit,
            fill,
            only_masked,
            soft,
            soft_inpainting: _,
            outpaint,
        } = init.editing;
        let (picture, mask) = whole(init, outpaint);
        let mut controls = request.controls.clone();

        let shape = (request.width, request.height);
        let region = mask.as_ref().zip(only_masked);
        let region = region.and_then(|(mask, padding)| Region::of(mask, padding, shape));
        let (ready, ready_mask, under) = match (mask, region) {
            (None, _) => (fitted(&picture, width, height, fit), None, None),
            (Some(mask), None) => {
                let ready = fitted(&picture, width, height, fit);
                let ready_mask = match fit {
                    Fit::Latent => stretched(&mask, width, height),
                    _ => fitted(&mask, width, height, fit),
                };
                let under = Under {
                    picture: stretched(&ready, width, height),
                    mask: ready_mask.clone(),
                    region: None,
                };
                (ready, Some(ready_mask), Some(under))
            }
            (Some(mask), Some(region)) => {
                let Region {
                    x,
                    y,
                    width: w,
                    height: h,
                } = region;
                for control in &mut controls {
                    // A picture of the whole shows the same place.
                    if control.image.dimensions() == picture.dimensions() {
                        control.image = imageops::crop_imm(&control.image, x, y, w, h).to_image();
                    }
                    if let Hidden::White(mask) = &mut control.hidden {
                        if mask.dimensions() == picture.dimensions() {
                            *mask = imageops::crop_imm(mask, x, y, w, h).to_image();
                        }
                    }
                }
                let part = imageops::crop_imm(&picture, x, y, w, h).to_image();
                let part_mask = imageops::crop_imm(&mask, x, y, w, h).to_image();
                let ready = fitted(&part, width, height, Fit::Fill);
                let ready_mask = fitted(&part_mask, width, height, Fit::Fill);
                let under = Under {
                    picture,
                    mask,
                    region: Some(region),
                };
                (ready, Some(ready_mask), Some(under))
            }
        };
        let ready = match (&ready_mask, fill) {
            (Some(mask), Fill::Colors) if mask.dimensions() == ready.dimensions() => {
                filled(&ready, mask)
            }
            _ => ready,
        };
        let init = Init {
            image: ready,
            mask: ready_mask,
            mask_blur: 0.0,
            mask_invert: false,
            latent_mask: init.latent_mask.clone(),
            editing: Editing {
                // What a picture of another size still needs.
                fit: match region {
                    Some(_) => Fit::Stretch,
                    None => fit,
                },
                outpaint: Sides::default(),
                only_masked: None,
                ..init.editing
            },
            ..*init
        };
        let under = under.map(|under| match soft {
            true => Under {
                // Grey has said when a pixel was painted: what was painted at all is taken.
                mask: hard(&under.mask),
                ..under
            },
            false => under,
        });
        Some(Self {
            request: ImageRequest {
                init: Some(init),
                controls,
                ..request.clone()
            },
            under,
        })
    }

    /// Puts pictures of the request's size back; `masks` of that size, one for each, count instead of the request's own.
    pub fn finish(&self, pictures: &mut [RgbImage], masks: &[GrayImage]) {
        let Some(under) = &self.under else {
            return;
        };
        for (i, picture) in pictures.iter_mut().enumerate() {
            if let Some(region) = under.region {
                let part = fitted(picture, region.width, region.height, Fit::Crop);
                let mut all = under.picture.clone();
                put(&mut all, &part, region.x, region.y);
                *picture = all;
            }
            let own = masks.get(i).map(|mask| match under.region {
                None => mask.clone(),
                Some(region) => {
                    let part = fitted(mask, region.width, region.height, Fit::Crop);
                    let mut all = GrayImage::new(picture.width(), picture.height());
                    put(&mut all, &part, region.x, region.y);
                    all
                }
            });
            let mask = own.as_ref().unwrap_or(&under.mask);
            composite(mask, &under.picture, picture);
        }
    }
}

/// The picture with its sides, and the softened mask of the same size, if there is one.
fn whole(init: &Init, outpaint: Sides) -> (RgbImage, Option<GrayImage>) {
    let (width, height) = init.image.dimensions();
    let mask = init.mask.as_ref().map(|mask| {
        let mut mask = match mask.dimensions() == (width, height) {
            true => mask.clone(),
            false => imageops::resize(mask, width, height, FilterType::Triangle),
        };
        if init.mask_invert {
            imageops::invert(&mut mask);
        }
        mask
    });
    if outpaint.is_empty() {
        let mask = mask.map(|mask| blurred(&mask, init.mask_blur));
        return (init.image.clone(), mask);
    }
    // What is new reaches into the picture by as much as the mask is softened: the seam lies within.
    let reach = (2.0 * init.mask_blur).round() as u32;
    let within = |i: u32, before: usize, after: usize, size: u32| {
        let low = before as u32 + if before > 0 { reach } else { 0 };
        let high = before as u32 + size.saturating_sub(if after > 0 { reach } else { 0 });
        (low..high).contains(&i)
    };
    let mask = mask.unwrap_or_else(|| GrayImage::new(width, height));
    let mut mask = extended(&mask, outpaint);
    for (x, y, white) in mask.enumerate_pixels_mut() {
        let old = within(x, outpaint.left, outpaint.right, width)
            && within(y, outpaint.top, outpaint.bottom, height);
        if !old {
            *white = Luma([255]);
        }
    }
    let mask = blurred(&mask, init.mask_blur);
    (extended(&init.image, outpaint), Some(mask))
}

/// White wherever a mask is not black.
fn hard(mask: &GrayImage) -> GrayImage {
    let mut mask = mask.clone();
    for pixel in mask.pixels_mut() {
        pixel.0[0] = 255 * u8::from(pixel.0[0] > 0);
    }
    mask
}

/// The new picture where the mask is white, the old one where it is black.
fn composite(mask: &GrayImage, old: &RgbImage, new: &mut RgbImage) {
    for ((new, old), mask) in new.pixels_mut().zip(old.pixels()).zip(mask.pixels()) {
        let mask = u32::from(mask.0[0]);
        for (new, old) in new.0.iter_mut().zip(old.0) {
            let sum = u32::from(*new) * mask + u32::from(old) * (255 - mask);
            *new = ((sum + 127) / 255) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    fn request(init: Init) -> ImageRequest {
        ImageRequest {
            width: 32,
            height: 32,
            init: Some(init),
            ..ImageRequest::default()
        }
    }

    fn gradient(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([x as u8, y as u8, 9]))
    }

    #[test]
    fn a_part_is_cut_out_and_put_back() {
        let mask = GrayImage::from_fn(100, 80, |x, y| {
            Luma([255 * u8::from((40..56).contains(&x) && (20..36).contains(&y))])
        });
        let init = Init {
            mask: Some(mask),
            editing: Editing {
                only_masked: Some(8),
                ..Editing::default()
            },
            ..Init::new(gradient(100, 80), 0.5)
        };
        let edit = Edit::of(&request(init)).unwrap();
        let ready = edit.request.init.as_ref().unwrap();
        // The part has the request's very size here: not a pixel is changed.
        assert_eq!(ready.image.get_pixel(0, 0).0, [32, 12, 9]);
        assert_eq!(ready.image.dimensions(), (32, 32));
        let mut pictures = [RgbImage::from_pixel(32, 32, Rgb([250, 250, 250]))];
        edit.finish(&mut pictures, &[]);
        assert_eq!(pictures[0].dimensions(), (100, 80));
        for (x, y, pixel) in pictures[0].enumerate_pixels() {
            let inside = (40..56).contains(&x) && (20..36).contains(&y);
            let expected = if inside {
                [250; 3]
            } else {
                [x as u8, y as u8, 9]
            };
            assert_eq!(pixel.0, expected, "{x}, {y}");
        }
    }

    #[test]
    fn sides_are_painted() {
        let init = Init {
            mask_blur: 1.0,
            editing: Editing {
                outpaint: "left=8".parse().unwrap(),
                ..Editing::default()
            },
            ..Init::new(gradient(24, 32), 1.0)
        };
        let edit = Edit::of(&request(init)).unwrap();
        let ready = edit.request.init.as_ref().unwrap();
        let mask = ready.mask.as_ref().unwrap();
        // The edge is repeated, the mask reaches into the picture, the far side is kept.
        assert_eq!(ready.image.get_pixel(0, 5).0, [0, 5, 9]);
        assert_eq!(ready.image.get_pixel(20, 5).0, [12, 5, 9]);
        assert_eq!(mask.get_pixel(0, 5).0, [255]);
        assert!(mask.get_pixel(7, 5).0[0] > 250);
        assert!(mask.get_pixel(10, 5).0[0] > 0);
        assert_eq!(mask.get_pixel(14, 5).0, [0]);
        assert_eq!(mask.get_pixel(31, 5).0, [0]);
    }

    #[test]
    fn soft_masks_keep_only_what_was_never_painted() {
        let mask = GrayImage::from_fn(32, 32, |x, _| Luma([(x * 8) as u8]));
        let init = Init {
            mask: Some(mask),
            editing: Editing {
                soft: true,
                ..Editing::default()
            },
            ..Init::new(gradient(32, 32), 1.0)
        };
        let edit = Edit::of(&request(init)).unwrap();
        let mut pictures = [RgbImage::from_pixel(32, 32, Rgb([250, 250, 250]))];
        edit.finish(&mut pictures, &[]);
        assert_eq!(pictures[0].get_pixel(0, 3).0, [0, 3, 9]);
        assert_eq!(pictures[0].get_pixel(1, 3).0, [250; 3]);
    }
}
