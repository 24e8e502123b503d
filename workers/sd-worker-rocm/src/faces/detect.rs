//! Faces found in pictures.

use super::file::{network, Opened};
use crate::editing::resize::Filter;
use crate::models::faces::retinaface::{Found, Layout, RetinaFace, FACES};
use crate::models::faces::Kind;
use crate::pipeline::module::Module;
use candle_core::{Device, Tensor};
use image::RgbImage;
use std::path::Path;
use worker::{Error, Result};

/// How sure the network must be of a face.
pub const SURE: f32 = 0.97;

/// Boxes that share more than this with a surer one are the same face.
const SAME: f32 = 0.4;

/// Most places that are looked at, the surest first, and most faces.
const MOST_PLACES: usize = 5000;
const MOST_FACES: usize = 256;

/// Longest side of a picture that is searched; larger ones are searched in this size.
const LONGEST: u32 = 2048;

/// For each size of features: how many pixels lie between two places, and the sides of faces asked for.
const PLACES: [(usize, [f32; FACES]); 3] =
    [(8, [16.0, 32.0]), (16, [64.0, 128.0]), (32, [256.0, 512.0])];

/// By what the network's numbers are multiplied: of places, and of sizes.
const VARIANCES: [f32; 2] = [0.1, 0.2];

/// Blue, green and red.
const MEAN: [f32; 3] = [104.0, 117.0, 123.0];

/// A face in a picture, in pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Face {
    /// Left, top, right, bottom.
    pub bounds: [f32; 4],
    /// From 0 to 1.
    pub score: f32,
    /// Left eye, right eye, nose, left and right corner of the mouth, as seen.
    pub landmarks: [[f32; 2]; 5],
}

/// A network that finds faces.
pub struct Detector {
    module: Module<RetinaFace>,
    device: Device,
}

impl Detector {
    /// Opens a safetensors file.
    ///
    /// # Errors
    /// [`Error::BadModel`] for pickles, with how to convert them, other kinds of files, and damage.
    pub fn open(path: &Path, device: &Device) -> Result<Self> {
        let Opened { weights, .. } = Opened::of(path, |kind| kind == Kind::Detector)?;
        let layout = Layout::of(&weights).map_err(|reason| super::file::bad(path, reason))?;
        let build = move |vb| RetinaFace::new(vb, &layout);
        Ok(Self {
            module: network("the detector of faces", weights, device, build)?,
            device: device.clone(),
        })
    }

    /// The faces of which the network is at least so sure, the surest first.
    ///
    /// # Errors
    /// The device's.
    pub fn find(&mut self, picture: &RgbImage, sure: f32) -> Result<Vec<Face>> {
        let (width, height) = picture.dimensions();
        let longest = width.max(height);
        if longest > LONGEST {
            let scale = f64::from(LONGEST) / f64::from(longest);
            let side = |side: u32| (f64::from(side) * scale).round().max(1.0) as u32;
            let small = Filter::Lanczos.resize(picture, side(width), side(height));
            let across = width as f32 / small.width() as f32;
            let down = height as f32 / small.height() as f32;
            let mut faces = self.find_once(&small, sure)?;
            for face in &mut faces {
                let [left, top, right, bottom] = face.bounds;
                face.bounds = [left * across, top * down, right * across, bottom * down];
                face.landmarks = face.landmarks.map(|[x, y]| [x * across, y * down]);
            }
            return Ok(faces);
        }
        self.find_once(picture, sure)
    }

    fn find_once(&mut self, picture: &RgbImage, sure: f32) -> Result<Vec<Face>> {
        let (width, height) = picture.dimensions();
        let network = self.module.network()?;
        let run = || -> candle_core::Result<[Vec<Vec<f32>>; 3]> {
            let Found {
                boxes,
                scores,
                landmarks,
            } = network.forward(&self.input(picture)?)?;
            let scores = candle_nn::ops::softmax_last_dim(&scores)?;
            Ok([boxes.to_vec2()?, scores.to_vec2()?, landmarks.to_vec2()?])
        };
        let [boxes, scores, landmarks] = run().map_err(Error::candle("looking for faces"))?;
        let asked = asked(width as usize, height as usize);
        let mut sureness: Vec<(usize, f32)> = scores
            .iter()
            .map(|row| row[1])
            .enumerate()
            .filter(|(_, score)| *score > sure)
            .collect();
        sureness.sort_by(|a, b| b.1.total_cmp(&a.1));
        sureness.truncate(MOST_PLACES);
        let mut faces: Vec<Face> = Vec::new();
        for (i, score) in sureness {
            let Some([x, y, side]) = asked.get(i).copied() else {
                continue;
            };
            let [near, far] = VARIANCES;
            let place = |dx: f32, dy: f32| [x + dx * near * side, y + dy * near * side];
            let [cx, cy] = place(boxes[i][0], boxes[i][1]);
            let half = |number: f32| side * (number * far).exp() / 2.0;
            let (w, h) = (half(boxes[i][2]), half(boxes[i][3]));
            let face = Face {
                bounds: [cx - w, cy - h, cx + w, cy + h],
                score,
                landmarks: std::array::from_fn(|j| {
                    place(landmarks[i][2 * j], landmarks[i][2 * j + 1])
                }),
            };
            let numbers = face.bounds.iter().chain(face.landmarks.as_flattened());
            let known = numbers.clone().all(|number| number.is_finite());
            if known && !faces.iter().any(|other| shared(other, &face) > SAME) {
                faces.push(face);
            }
            if faces.len() == MOST_FACES {
                break;
            }
        }
        Ok(faces)
    }

    /// `(1, 3, height, width)`, blue first.
    fn input(&self, picture: &RgbImage) -> candle_core::Result<Tensor> {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let mut planes = vec![0f32; 3 * width * height];
        for (i, pixel) in picture.pixels().enumerate() {
            for (channel, mean) in MEAN.iter().enumerate() {
                planes[channel * width * height + i] = f32::from(pixel.0[2 - channel]) - mean;
            }
        }
        Tensor::from_vec(planes, (1, 3, height, width), &self.device)
    }
}

/// The faces that the network is asked for: middle and side.
fn asked(width: usize, height: usize) -> Vec<[f32; 3]> {
    let mut asked = Vec::new();
    for (step, sides) in PLACES {
        for row in 0..height.div_ceil(step) {
            for column in 0..width.div_ceil(step) {
                let place = |i: usize| (i as f32 + 0.5) * step as f32;
                asked.extend(sides.map(|side| [place(column), place(row), side]));
            }
        }
    }
    asked
}

/// Which share of both together two boxes share.
fn shared(a: &Face, b: &Face) -> f32 {
    let area =
        |[left, top, right, bottom]: [f32; 4]| (right - left).max(0.0) * (bottom - top).max(0.0);
    let both = area([
        a.bounds[0].max(b.bounds[0]),
        a.bounds[1].max(b.bounds[1]),
        a.bounds[2].min(b.bounds[2]),
        a.bounds[3].min(b.bounds[3]),
    ]);
    both / (area(a.bounds) + area(b.bounds) - both).max(f32::MIN_POSITIVE)
}

/// The face whose middle is nearest to the picture's.
pub fn central(faces: Vec<Face>, picture: &RgbImage) -> Option<Face> {
    let (width, height) = picture.dimensions();
    let far = |face: &Face| {
        let [left, top, right, bottom] = face.bounds;
        ((left + right - width as f32) / 2.0).hypot((top + bottom - height as f32) / 2.0)
    };
    faces.into_iter().min_by(|a, b| far(a).total_cmp(&far(b)))
}
