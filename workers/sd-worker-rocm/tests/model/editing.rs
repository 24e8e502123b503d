//! Pictures that start from pictures, against diffusers'.

use super::common::{go_on, Draw};
use super::small::{apart, Pipelines};
use image::{GrayImage, Luma};
use sd_worker_rocm::editing::fit::fitted;
use sd_worker_rocm::editing::resize::Filter;
use sd_worker_rocm::editing::{Editing, Fill, Fit, SoftInpainting};
use sd_worker_rocm::pipeline::{ImageRequest, Init, PipelineOptions};
use sd_worker_rocm::request::Limits;

fn rectangle((width, height): (u32, u32), [left, top, right, bottom]: [u32; 4]) -> GrayImage {
    GrayImage::from_fn(width, height, |x, y| {
        Luma([255 * u8::from((left..right).contains(&x) && (top..bottom).contains(&y))])
    })
}

fn masked(p: &Pipelines, editing: Editing) -> Init {
    Init {
        mask: Some(rectangle((48, 32), [20, 8, 40, 28])),
        editing,
        ..Init::new(p.picture("start"), 1.0)
    }
}

/// Draws each case as the fixture's picture was made, and with something else, which must be another picture.
fn each_is_expected<const N: usize>(p: &Pipelines, cases: [(&str, Init, Init); N]) {
    let mut pipeline = p.load(&p.folder("edit"), PipelineOptions::default());
    let mut draw = |case: &str, init: Init| {
        let request = ImageRequest {
            init: Some(init),
            ..p.request(case)
        };
        let mut images = pipeline.draw(&request, &mut go_on).unwrap().images;
        images.remove(0)
    };
    for (case, init, other) in cases {
        let expected = p.picture(case);
        let off = apart(&draw(case, init), &expected);
        assert!(off <= 1, "{case}: {off}");
        let off = apart(&draw(case, other), &expected);
        assert!(off > 3, "{case}: the option hardly matters ({off})");
    }
}

#[test]
fn masks_fillings_and_parts() {
    let p = Pipelines::of("editing");
    let fill = |fill| Editing {
        fill,
        ..Editing::default()
    };
    let ramp = |soft| Init {
        mask: Some(image::DynamicImage::from(p.picture("ramp")).to_luma8()),
        editing: Editing {
            soft,
            ..Editing::default()
        },
        ..Init::new(p.picture("start"), 1.0)
    };
    let strength = 0.75;
    let whole = Init {
        strength,
        ..masked(&p, Editing::default())
    };
    let part = Init {
        mask: Some(rectangle((112, 80), [60, 24, 72, 32])),
        editing: Editing {
            only_masked: Some(4),
            ..Editing::default()
        },
        ..Init::new(p.picture("large"), strength)
    };
    let wider = Init {
        editing: Editing {
            only_masked: Some(14),
            ..Editing::default()
        },
        ..part.clone()
    };
    let cases = [
        ("whole", whole.clone(), masked(&p, Editing::default())),
        ("nothing", masked(&p, fill(Fill::Nothing)), whole),
        (
            "noise",
            masked(&p, fill(Fill::Noise)),
            masked(&p, fill(Fill::Original)),
        ),
        ("soft", ramp(true), ramp(false)),
        ("mixed", ramp(false), ramp(true)),
        ("only_masked", part, wider),
    ];
    each_is_expected(&p, cases);
}

/// The web UI's soft inpainting, and latents that are painted elsewhere than the mask's pixels.
#[test]
fn soft_inpainting_is_the_web_uis() {
    let p = Pipelines::of("editing");
    let ramp = |settings: &str, fill| Init {
        mask: Some(image::DynamicImage::from(p.picture("ramp")).to_luma8()),
        editing: Editing {
            soft_inpainting: Some(settings.parse().unwrap()),
            fill,
            ..Editing::default()
        },
        ..Init::new(p.picture("start"), 1.0)
    };
    let set =
        "schedule-bias=1.5,preservation-strength=2,transition-contrast-boost=9,mask-influence=0.4,\
               difference-threshold=1.25,difference-contrast=3";
    let noisy = "schedule-bias=0.5,preservation-strength=1,transition-contrast-boost=32,mask-influence=0.7,\
                 difference-threshold=2,difference-contrast=1";
    let elsewhere = Init {
        latent_mask: Some(rectangle((48, 32), [4, 2, 30, 20])),
        ..masked(&p, Editing::default())
    };
    let cases = [
        (
            "soft_inpainting",
            ramp("usual", Fill::Original),
            ramp(set, Fill::Original),
        ),
        (
            "soft_inpainting_set",
            ramp(set, Fill::Original),
            ramp("mask-influence=0.4", Fill::Original),
        ),
        (
            "soft_inpainting_noise",
            ramp(noisy, Fill::Noise),
            ramp(noisy, Fill::Original),
        ),
        ("latent_mask", elsewhere, masked(&p, Editing::default())),
    ];
    each_is_expected(&p, cases);
}

/// Of a part that is cut out, differences say which pixels are put back; around it nothing is touched.
#[test]
fn a_part_is_painted_softly() {
    let p = Pipelines::of("editing");
    let mut pipeline = p.load(&p.folder("edit"), PipelineOptions::default());
    let large = p.picture("large");
    let request = ImageRequest {
        batch: 2,
        init: Some(Init {
            mask: Some(rectangle((112, 80), [60, 24, 72, 32])),
            mask_blur: 4.0,
            editing: Editing {
                only_masked: Some(4),
                soft_inpainting: Some(SoftInpainting::default()),
                ..Editing::default()
            },
            ..Init::new(large.clone(), 1.0)
        }),
        ..p.request("only_masked")
    };
    let images = pipeline.draw(&request, &mut go_on).unwrap().images;
    assert_ne!(images[0], images[1]);
    for image in &images {
        assert_eq!(image.dimensions(), large.dimensions());
        let same = |x, y| image.get_pixel(x, y) == large.get_pixel(x, y);
        assert!((0..112).all(|x| (0..4).all(|y| same(x, y))));
        assert!(apart(image, &large) > 30);
    }
}

#[test]
fn resize_modes() {
    let p = Pipelines::of("editing");
    let large = p.picture("large");
    for (name, size, fit) in [
        ("crop_48", (48, 48), Fit::Crop),
        ("fill_48", (48, 48), Fit::Fill),
        ("crop_64", (64, 24), Fit::Crop),
        ("fill_64", (64, 24), Fit::Fill),
    ] {
        let ours = fitted(&large, size.0, size.1, fit);
        assert_eq!(apart(&ours, &p.picture(name)), 0, "{name}");
        let stretched = fitted(&large, size.0, size.1, Fit::Stretch);
        assert!(apart(&stretched, &p.picture(name)) > 3);
    }
}

#[test]
fn filters_are_pillows() {
    let p = Pipelines::of("editing");
    let large = p.picture("large");
    for (name, filter) in [
        ("nearest", Filter::Nearest),
        ("box", Filter::Box),
        ("bilinear", Filter::Bilinear),
        ("bicubic", Filter::Bicubic),
        ("lanczos", Filter::Lanczos),
    ] {
        let (smaller, larger) = (
            filter.resize(&large, 37, 23),
            filter.resize(&large, 125, 91),
        );
        assert_eq!(
            apart(&smaller, &p.picture(&format!("{name}_37"))),
            0,
            "{name}"
        );
        // A larger one is kept as far as its first rows.
        let rows = image::imageops::crop_imm(&larger, 0, 0, 125, 9).to_image();
        assert_eq!(
            apart(&rows, &p.picture(&format!("{name}_125"))),
            0,
            "{name}"
        );
    }
}

#[test]
fn outpainting_keeps_the_picture() {
    let p = Pipelines::of("editing");
    let mut pipeline = p.load(&p.folder("edit"), PipelineOptions::default());
    let start = p.picture("start");
    let request = ImageRequest {
        width: 64,
        height: 32,
        init: Some(Init {
            editing: Editing {
                outpaint: "right=16".parse().unwrap(),
                fill: Fill::Noise,
                ..Editing::default()
            },
            ..Init::new(start.clone(), 1.0)
        }),
        ..p.request("whole")
    };
    let painted = pipeline
        .draw(&request, &mut go_on)
        .unwrap()
        .images
        .remove(0);
    let kept = image::imageops::crop_imm(&painted, 0, 0, 48, 32).to_image();
    assert_eq!(kept, start);
    let edge = start.get_pixel(47, 16);
    let new = (48..64).map(|x| painted.get_pixel(x, 16));
    assert!(new.filter(|pixel| *pixel != edge).count() > 8);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let p = Pipelines::of("editing");
    let pipeline = p.load(&p.folder("edit"), PipelineOptions::default());
    let refused = |editing, mask: Option<GrayImage>| {
        let init = Init {
            editing,
            mask,
            ..Init::new(p.picture("start"), 0.5)
        };
        let request = ImageRequest {
            init: Some(init),
            ..p.request("whole")
        };
        request
            .valid(pipeline.info(), &Limits::LOCAL)
            .err()
            .map(|e| e.field)
    };
    let usual = Editing::default();
    let soft_inpainting = Some(SoftInpainting::default());
    let fill = Fill::Noise;
    let only_masked = Some(8);
    let outpaint = "left=60000".parse().unwrap();
    for (editing, field) in [
        (Editing { fill, ..usual }, "mask_fill"),
        (
            Editing {
                soft: true,
                ..usual
            },
            "soft_mask",
        ),
        (
            Editing {
                soft_inpainting,
                ..usual
            },
            "soft_inpainting",
        ),
        (
            Editing {
                only_masked,
                ..usual
            },
            "only_masked",
        ),
        (Editing { outpaint, ..usual }, "outpaint"),
    ] {
        assert_eq!(refused(editing, None), Some(field));
        let with_mask = refused(editing, Some(GrayImage::new(8, 8)));
        assert_eq!(with_mask.is_some(), field == "outpaint", "{field}");
    }
    let mask = || Some(GrayImage::new(8, 8));
    let both = Editing {
        soft: true,
        soft_inpainting,
        ..usual
    };
    assert_eq!(refused(both, mask()), Some("soft_inpainting"));
    let wild = Editing {
        soft_inpainting: Some(SoftInpainting {
            mask_influence: f64::NAN,
            ..SoftInpainting::default()
        }),
        ..usual
    };
    assert_eq!(refused(wild, mask()), Some("soft_inpainting"));
}
