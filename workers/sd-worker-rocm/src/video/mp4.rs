//! AV1 in MP4.

use super::boxes::{file, Track};
use super::{failed, VideoFile, VideoFormat, VideoWriter};
use image::RgbImage;
use rav1e::prelude::{
    ChromaSampling, ColorDescription, ColorPrimaries, Config, Context, EncoderConfig,
    EncoderStatus, FrameType, MatrixCoefficients, PixelRange, Rational, SpeedSettings,
    TransferCharacteristics,
};
use worker::Result;

/// The encoder's preset, 0 (best) to 10 (fastest).
const SPEED: u8 = 9;
/// How coarse numbers become, 0 to 255.
const QUANTIZER: usize = 60;
/// Pixels of a side: the encoder's blocks have at least 16, and MP4 has 16 bits for the size.
const SIDES: std::ops::RangeInclusive<u32> = 16..=u16::MAX as u32;
/// Seconds between frames that stand alone.
const KEY_SECONDS: u64 = 2;

/// The file so far.
pub(super) struct Mp4 {
    encoder: Context<u8>,
    width: u32,
    height: u32,
    frames: usize,
    track: Track,
}

impl Mp4 {
    pub(super) fn new(file: &VideoFile) -> Result<Self> {
        if !SIDES.contains(&file.width) || !SIDES.contains(&file.height) {
            return Err(file.refused("it takes 16 to 65535 pixels a side"));
        }
        let mut config = EncoderConfig {
            width: file.width as usize,
            height: file.height as usize,
            time_base: Rational::new(1, file.fps as u64),
            chroma_sampling: ChromaSampling::Cs420,
            pixel_range: PixelRange::Limited,
            color_description: Some(ColorDescription {
                color_primaries: ColorPrimaries::BT709,
                transfer_characteristics: TransferCharacteristics::BT709,
                matrix_coefficients: MatrixCoefficients::BT709,
            }),
            // Packets then come in the frames' order.
            low_latency: true,
            quantizer: QUANTIZER,
            speed_settings: SpeedSettings::from_preset(SPEED),
            ..EncoderConfig::default()
        };
        config.set_key_frame_interval(0, KEY_SECONDS * file.fps as u64);
        let context = Config::new().with_encoder_config(config).new_context();
        let encoder = context.map_err(|e| file.refused(e))?;
        Ok(Self {
            track: Track {
                width: file.width as u16,
                height: file.height as u16,
                fps: file.fps as u32,
                configuration: encoder.container_sequence_header(),
                samples: Vec::new(),
                comment: file.parameters.to_string(),
            },
            encoder,
            width: file.width,
            height: file.height,
            frames: 0,
        })
    }

    /// Takes what the encoder has ready.
    fn drain(&mut self) -> Result<()> {
        loop {
            match self.encoder.receive_packet() {
                Ok(packet) => {
                    let key = packet.frame_type == FrameType::KEY;
                    // Containers say by themselves where a frame begins.
                    const DELIMITER: &[u8] = &[0x12, 0x00];
                    let data = packet.data;
                    let data = match data.strip_prefix(DELIMITER) {
                        Some(rest) => rest.to_vec(),
                        None => data,
                    };
                    self.track.samples.push((data, key));
                }
                Err(EncoderStatus::Encoded) => {}
                Err(EncoderStatus::NeedMoreData | EncoderStatus::LimitReached) => return Ok(()),
                Err(e) => return Err(failed(VideoFormat::Mp4, e)),
            }
        }
    }
}

impl VideoWriter for Mp4 {
    fn push(&mut self, frame: &RgbImage) -> Result<()> {
        if frame.dimensions() != (self.width, self.height) {
            return Err(failed(VideoFormat::Mp4, "a frame of another size"));
        }
        let planes = planes(frame);
        let mut to = self.encoder.new_frame();
        let width = self.width as usize;
        for (i, plane) in planes.iter().enumerate() {
            let stride = if i == 0 { width } else { width.div_ceil(2) };
            to.planes[i].copy_from_raw_u8(plane, stride, 1);
        }
        let sent = self.encoder.send_frame(to);
        sent.map_err(|e| failed(VideoFormat::Mp4, e))?;
        self.frames += 1;
        self.drain()
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<u8>> {
        self.encoder.flush();
        self.drain()?;
        if self.frames == 0 || self.track.samples.len() != self.frames {
            let why = format!("{} of {} frames", self.track.samples.len(), self.frames);
            return Err(failed(VideoFormat::Mp4, why));
        }
        file(&self.track).map_err(|e| failed(VideoFormat::Mp4, e))
    }
}

/// Brightness, and two differences of colour for every square of four pixels, by BT.709 in its limited range.
fn planes(frame: &RgbImage) -> [Vec<u8>; 3] {
    let (width, height) = (frame.width() as usize, frame.height() as usize);
    let luma = |[r, g, b]: [f32; 3]| 0.2126 * r + 0.7152 * g + 0.0722 * b;
    let pixel = |x: usize, y: usize| {
        let at = 3 * (y * width + x);
        let bytes = &frame.as_raw()[at..at + 3];
        [bytes[0], bytes[1], bytes[2]].map(|byte| f32::from(byte) / 255.0)
    };
    // What is in range is rounded; nothing else comes in.
    let byte = |value: f32| (value + 0.5) as u8;
    let mut y_plane = Vec::with_capacity(width * height);
    for y in 0..height {
        y_plane.extend((0..width).map(|x| byte(16.0 + 219.0 * luma(pixel(x, y)))));
    }
    let (columns, rows) = (width.div_ceil(2), height.div_ceil(2));
    let mut blue = Vec::with_capacity(columns * rows);
    let mut red = Vec::with_capacity(columns * rows);
    for row in 0..rows {
        for column in 0..columns {
            let mut mean = [0f32; 3];
            for (dx, dy) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                let (x, y) = (2 * column + dx, 2 * row + dy);
                let one = pixel(x.min(width - 1), y.min(height - 1));
                for (sum, value) in mean.iter_mut().zip(one) {
                    *sum += value / 4.0;
                }
            }
            let y = luma(mean);
            blue.push(byte(128.0 + 224.0 * (mean[2] - y) / 1.8556));
            red.push(byte(128.0 + 224.0 * (mean[0] - y) / 1.5748));
        }
    }
    [y_plane, blue, red]
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    #[test]
    fn colours_of_bt_709() {
        for (rgb, expected) in [
            ([0, 0, 0], [16, 128, 128]),
            ([255, 255, 255], [235, 128, 128]),
            ([255, 0, 0], [63, 102, 240]),
            ([0, 255, 0], [173, 42, 26]),
            ([0, 0, 255], [32, 240, 118]),
        ] {
            // An odd size, whose last square has fewer pixels.
            let planes = planes(&RgbImage::from_pixel(3, 3, Rgb(rgb)));
            assert_eq!(planes[0], [expected[0]; 9], "{rgb:?}");
            assert_eq!(planes[1], [expected[1]; 4], "{rgb:?}");
            assert_eq!(planes[2], [expected[2]; 4], "{rgb:?}");
        }
    }

    #[test]
    fn every_frame_is_a_sample() {
        let description = VideoFile {
            format: VideoFormat::Mp4,
            width: 48,
            height: 32,
            fps: 16,
            parameters: "a red door",
        };
        let mut writer = description.begin().unwrap();
        for i in 0..5 {
            let frame =
                RgbImage::from_fn(48, 32, |x, y| Rgb([(5 * x) as u8, (7 * y) as u8, 40 * i]));
            writer.push(&frame).unwrap();
        }
        let bytes = writer.finish().unwrap();
        let at = |name: &[u8; 4]| bytes.windows(4).position(|window| window == name);
        assert_eq!(at(b"ftyp"), Some(4));
        assert!(at(b"moov") < at(b"mdat"), "readable from its beginning");
        // Sizes of samples: version, one size for all (none), their number, each.
        let sizes = at(b"stsz").unwrap() + 4;
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(number(sizes + 8), 5);
        let all: u32 = (0..5).map(|i| number(sizes + 12 + 4 * i)).sum();
        let data = at(b"mdat").unwrap();
        assert_eq!(number(data - 4), all + 8);
        assert_eq!(data - 4 + all as usize + 8, bytes.len());
        // The samples begin where the table says: right behind the name.
        assert_eq!(number(at(b"stco").unwrap() + 12) as usize, data + 4);
        // A sequence header comes first: an open bitstream unit of type 1 with a size.
        assert_eq!(bytes[data + 4], 0x0A);
        let text = b"a red door";
        assert!(bytes.windows(text.len()).any(|window| window == text));
    }
}
