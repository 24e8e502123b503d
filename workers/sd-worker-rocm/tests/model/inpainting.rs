//! Stable Diffusion XL for inpainting against a loop of diffusers' parts: `tests/reference/make_inpainting.py` has it.

use super::small::Pipelines;
use sd_worker_rocm::pipeline::Init;

#[test]
fn xl_with_nine_channels() {
    let p = Pipelines::of("inpainting");
    let mask = image::GrayImage::from_fn(48, 32, |x, _| image::Luma([255 * u8::from(x >= 24)]));
    p.check("xl_inpaint", |request| {
        request.init = Some(Init {
            mask: Some(mask.clone()),
            ..Init::new(p.picture("start"), 1.0)
        });
    });
}
