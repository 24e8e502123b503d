//! A first picture that nobody sees.

use super::{GuidancePlace, Pipeline};
use crate::info::{Purpose, Takes};
use crate::request::{InitFields, InterfaceDefaults, Limits, RequestFields, VideoFields};
use crate::video::VideoFormat;
use image::RgbImage;
use std::ops::ControlFlow;
use worker::Result;

/// Steps of the picture: the second one of samplers that look back differs from the first.
const STEPS: usize = 2;

impl Pipeline {
    /// Makes a picture of the model's own size, so that the first request does not pay for what is made on first use:
    /// kernels, choices of convolutions, memory.
    ///
    /// # Errors
    /// The device's.
    pub fn warm_up(&mut self) -> Result<()> {
        let info = self.info();
        let picture = || {
            let (width, height) = (info.defaults.width, info.defaults.height);
            RgbImage::new(width as u32, height as u32)
        };
        let fields = RequestFields {
            // On a GPU the second one is recorded, if another one follows.
            steps: Some(STEPS + usize::from(self.device().is_rocm())),
            // Models that want more than a prompt get black pictures.
            init: (info.purpose == Purpose::Instructions).then(|| InitFields::new(picture())),
            references: vec![RgbImage::new(64, 64); *info.references.start()],
            video: match &info.defaults.video {
                // The shortest one that has all that longer ones have.
                Some(video) => VideoFields {
                    frames: Some(1 + video.time_factor),
                    first: (video.first == Takes::Must).then(picture),
                    last: (video.last == Takes::Must).then(picture),
                    format: Some(VideoFormat::Gif),
                    ..VideoFields::default()
                },
                None => VideoFields::default(),
            },
            depth: (info.purpose == Purpose::Depth).then(picture),
            ..RequestFields::default()
        };
        let request = fields.build(&info.defaults, &InterfaceDefaults::OWN)?;
        let request = request.valid(info, &Limits::LOCAL)?;
        self.generate(&request, &mut |_| ControlFlow::Continue(()))?;
        Ok(())
    }

    /// As [`Self::warm_up`], with the halves of guidance in one batch and one after the other.
    ///
    /// # Errors
    /// The device's.
    pub fn warm_up_in_turn(&mut self) -> Result<()> {
        self.warm_up()?;
        let guidance = std::mem::replace(&mut self.place.guidance, GuidancePlace::InTurn);
        let warmed = self.warm_up();
        self.place.guidance = guidance;
        warmed
    }
}
