//! Sound files to samples of one channel at the rate that is asked for. Files are hostile: what they announce is
//! checked against limits before memory is taken for it, and nothing in them ends the process.

use super::resample::Resampler;
use std::io::{Cursor, ErrorKind};
use std::panic::{catch_unwind, AssertUnwindSafe};
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::common::Limit;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;
use symphonia::default::{get_codecs, get_probe};

/// What is read, for messages.
const FORMATS: &str =
    "WAV, AIFF, FLAC, MP3, AAC, MP4 (m4a) with AAC, Ogg, WebM and Matroska with Vorbis, FLAC or PCM are read";
/// Samples of a second that a file may announce: more than any recorder writes.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=384_000;
/// Largest sample that counts; files of floats may hold any number, full scale is 1.
const LOUDEST: f32 = 1e4;
/// Bytes of a file's titles and pictures that are read before they are passed over.
const MAX_TAG_BYTES: usize = 1 << 20;

/// What a sound file may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoundLimits {
    /// Bytes of the file.
    pub max_bytes: usize,
    /// Seconds that it lasts.
    pub max_seconds: f64,
    /// Channels.
    pub max_channels: usize,
}

impl SoundLimits {
    /// 512 MiB, four hours, eight channels.
    pub const DEFAULT: Self = Self {
        max_bytes: 512 << 20,
        max_seconds: 4.0 * 3600.0,
        max_channels: 8,
    };
}

impl Default for SoundLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why a sound file is not read.
#[derive(Debug, thiserror::Error)]
pub enum SoundError {
    /// It is longer than allowed.
    #[error("the sound file has {bytes} bytes; {most} are the most")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// It lasts longer than allowed.
    #[error("the sound lasts longer than {most} seconds, which are the most; send parts of it")]
    TooLong {
        /// The most.
        most: f64,
    },
    /// It has more channels than allowed.
    #[error("the sound file has {channels} channels; 1 to {most} are possible")]
    Channels {
        /// Its channels.
        channels: usize,
        /// The most.
        most: usize,
    },
    /// A rate that no recorder writes.
    #[error("the sound file announces {rate} samples a second; {} to {} are possible", RATES.start(), RATES.end())]
    Rate {
        /// What it announces.
        rate: u32,
    },
    /// None of the formats that are read.
    #[error("the sound file is of no format that is known: {FORMATS}")]
    UnknownFormat,
    /// A container that is read, with something in it that is not.
    #[error("the sound file is coded as {0}, which is not decoded: {FORMATS}; convert it, for example with ffmpeg -i FILE out.flac")]
    UnknownCodec(String),
    /// It has no sound.
    #[error("the file has no sound in it")]
    Empty,
    /// It contradicts itself, or is cut off before the first sample.
    #[error("the sound file is damaged: {0}")]
    Damaged(String),
}

impl From<SoundError> for worker::Error {
    fn from(error: SoundError) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Decodes a sound file to samples of one channel, the mean of all, at `rate` samples a second; full scale is 1. Parts
/// that are damaged are left out, and a file that is cut off ends there.
///
/// # Errors
/// [`SoundError`] naming what is wrong with the file.
pub fn decode(bytes: &[u8], rate: u32, limits: &SoundLimits) -> Result<Vec<f32>, SoundError> {
    if bytes.len() > limits.max_bytes {
        return Err(SoundError::TooLarge {
            bytes: bytes.len(),
            most: limits.max_bytes,
        });
    }
    // The library has limits of its own; should a file find a hole in them, it is that file's matter.
    catch_unwind(AssertUnwindSafe(|| Decoding::new(rate, limits).run(bytes)))
        .unwrap_or_else(|_| Err(SoundError::Damaged("its parts do not fit".to_string())))
}

/// A file on its way.
struct Decoding<'a> {
    rate: u32,
    limits: &'a SoundLimits,
    resampler: Option<Resampler>,
    samples: Vec<f32>,
    /// Seconds of all that was decoded.
    seconds: f64,
    /// What went wrong first.
    trouble: Option<String>,
}

/// What comes of a packet.
enum Next {
    Packet,
    /// Tracks begin anew behind it.
    Tracks,
    End,
}

impl<'a> Decoding<'a> {
    fn new(rate: u32, limits: &'a SoundLimits) -> Self {
        Self {
            rate,
            limits,
            resampler: None,
            samples: Vec::new(),
            seconds: 0.0,
            trouble: None,
        }
    }

    fn run(mut self, bytes: &[u8]) -> Result<Vec<f32>, SoundError> {
        let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
        let tags = MetadataOptions::default()
            .limit_tag_bytes(Limit::Maximum(MAX_TAG_BYTES))
            .limit_visual_bytes(Limit::Maximum(MAX_TAG_BYTES));
        let format = get_probe().probe(&Hint::new(), stream, FormatOptions::default(), tags);
        let mut format = format.map_err(|error| match error {
            Error::Unsupported(_) => SoundError::UnknownFormat,
            Error::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => SoundError::UnknownFormat,
            error => SoundError::Damaged(error.to_string()),
        })?;
        let (mut track, mut decoder) = self.open(&*format)?;
        // Each packet takes bytes of the file; one that announces more than it has would go on for hours.
        for _ in 0..=bytes.len() {
            match self.next(&mut *format, track, &mut *decoder)? {
                Next::Packet => {}
                Next::Tracks => (track, decoder) = self.open(&*format)?,
                Next::End => break,
            }
        }
        self.flush();
        match (self.samples.is_empty(), self.trouble) {
            (true, Some(trouble)) => Err(SoundError::Damaged(trouble)),
            (true, None) => Err(SoundError::Empty),
            (false, _) => Ok(self.samples),
        }
    }

    /// The first track with sound, and what decodes it.
    fn open(&self, format: &dyn FormatReader) -> Result<(u32, Box<dyn AudioDecoder>), SoundError> {
        let track = format.default_track(TrackType::Audio);
        let track = track.ok_or(SoundError::Empty)?;
        let parameters = track.codec_params.as_ref().and_then(|all| all.audio());
        let parameters = parameters.ok_or(SoundError::Empty)?;
        if let Some(rate) = parameters.sample_rate.filter(|rate| !RATES.contains(rate)) {
            return Err(SoundError::Rate { rate });
        }
        if let Some(channels) = &parameters.channels {
            self.check_channels(channels.count())?;
        }
        let options = AudioDecoderOptions::default();
        let decoder = get_codecs().make_audio_decoder(parameters, &options);
        let decoder = decoder.map_err(|error| match error {
            Error::Unsupported(_) => SoundError::UnknownCodec(codec_name(parameters)),
            error => SoundError::Damaged(error.to_string()),
        })?;
        Ok((track.id, decoder))
    }

    fn check_channels(&self, channels: usize) -> Result<(), SoundError> {
        let most = self.limits.max_channels;
        match (1..=most).contains(&channels) {
            true => Ok(()),
            false => Err(SoundError::Channels { channels, most }),
        }
    }

    /// Decodes the next packet.
    fn next(
        &mut self,
        format: &mut dyn FormatReader,
        track: u32,
        decoder: &mut dyn AudioDecoder,
    ) -> Result<Next, SoundError> {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => return Ok(Next::End),
            Err(Error::ResetRequired) => return Ok(Next::Tracks),
            // It is cut off.
            Err(Error::IoError(e)) if e.kind() == ErrorKind::UnexpectedEof => return Ok(Next::End),
            // Behind damage that hides where the next packet is.
            Err(error) => {
                self.trouble.get_or_insert(error.to_string());
                return Ok(Next::End);
            }
        };
        if packet.track_id != track {
            return Ok(Next::Packet);
        }
        let sound = match decoder.decode(&packet) {
            Ok(sound) => sound,
            Err(Error::DecodeError(_) | Error::IoError(_)) => {
                self.trouble
                    .get_or_insert("none of its packets can be decoded".to_string());
                return Ok(Next::Packet);
            }
            Err(Error::ResetRequired) => return Ok(Next::Tracks),
            Err(error) => return Err(SoundError::Damaged(error.to_string())),
        };
        let (rate, channels) = (sound.spec().rate(), sound.spec().channels().count());
        self.check_channels(channels)?;
        if !RATES.contains(&rate) {
            return Err(SoundError::Rate { rate });
        }
        let frames = sound.frames();
        self.seconds += frames as f64 / f64::from(rate);
        if self.seconds > self.limits.max_seconds {
            let most = self.limits.max_seconds;
            return Err(SoundError::TooLong { most });
        }
        let mut all = Vec::new();
        sound.copy_to_vec_interleaved::<f32>(&mut all);
        let finite = |x: &f32| match x.is_finite() {
            true => x.clamp(-LOUDEST, LOUDEST),
            false => 0.0,
        };
        let mean = |frame: &[f32]| frame.iter().map(finite).sum::<f32>() / channels as f32;
        let mono: Vec<f32> = all.chunks_exact(channels).map(mean).collect();
        if self.resampler.as_ref().is_none_or(|r| r.from() != rate) {
            self.flush();
            self.resampler = Some(Resampler::new(rate, self.rate));
        }
        if let Some(resampler) = &mut self.resampler {
            resampler.push(&mono, &mut self.samples);
        }
        Ok(Next::Packet)
    }

    /// What the resampler still holds.
    fn flush(&mut self) {
        if let Some(resampler) = self.resampler.take() {
            resampler.finish(&mut self.samples);
        }
    }
}

fn codec_name(parameters: &AudioCodecParameters) -> String {
    match parameters.codec {
        CODEC_ID_OPUS => "Opus".to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Half a second of 440 Hz or a bit less, as loud as half of full scale: `tone.flac`, `tone.ogg` and `tone.mp3` (at
    /// 44100 Hz) by libsndfile, `tone.m4a` (AAC) and `opus.webm` by FFmpeg.
    fn file(name: &str) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sounds");
        std::fs::read(folder.join(name)).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<f32>, SoundError> {
        decode(bytes, 16_000, &SoundLimits::DEFAULT)
    }

    /// A WAV file of 16-bit numbers.
    fn wav(rate: u32, channels: u16, samples: &[i16]) -> Vec<u8> {
        let bytes = samples.len() as u32 * 2;
        let mut file = b"RIFF".to_vec();
        file.extend((36 + bytes).to_le_bytes());
        file.extend(b"WAVEfmt ");
        file.extend(16u32.to_le_bytes());
        file.extend([1, channels].iter().flat_map(|n| n.to_le_bytes()));
        file.extend(rate.to_le_bytes());
        file.extend((rate * u32::from(channels) * 2).to_le_bytes());
        file.extend([2 * channels, 16].iter().flat_map(|n| n.to_le_bytes()));
        file.extend(b"data");
        file.extend(bytes.to_le_bytes());
        file.extend(samples.iter().flat_map(|s| s.to_le_bytes()));
        file
    }

    /// How loud a tone of this frequency is in some samples.
    fn loudness(samples: &[f32], hertz: f64) -> f64 {
        let angle = |i: usize| std::f64::consts::TAU * hertz * i as f64 / 16_000.0;
        let sum = |part: fn(f64) -> f64| {
            let parts = samples.iter().enumerate();
            parts
                .map(|(i, x)| f64::from(*x) * part(angle(i)))
                .sum::<f64>()
        };
        2.0 * sum(f64::cos).hypot(sum(f64::sin)) / samples.len() as f64
    }

    #[test]
    fn every_format_has_the_tone() {
        for (name, least) in [
            ("flac", 8_000),
            ("ogg", 8_000),
            ("mp3", 7_900),
            ("m4a", 4_800),
        ] {
            let samples = read(&file(&format!("tone.{name}"))).unwrap();
            assert!((least..least + 1_500).contains(&samples.len()), "{name}");
            // Away from what codecs put around it.
            let middle = &samples[1_600..4_800];
            let (tone, other) = (loudness(middle, 440.0), loudness(middle, 1_000.0));
            assert!((tone - 0.5).abs() < 0.03, "{name}: {tone}");
            assert!(other < 0.01, "{name}: {other}");
        }
    }

    #[test]
    fn channels_become_their_mean_and_rates_the_one_asked_for() {
        let quiet = wav(16_000, 2, &[16_384, 0, -16_384, -16_384, 100, -100]);
        assert_eq!(read(&quiet).unwrap(), [0.25, -0.5, 0.0]);
        let samples = read(&wav(8_000, 1, &[1_000; 4_000])).unwrap();
        assert_eq!(samples.len(), 8_000);
        let level = 1_000.0 / 32_768.0;
        assert!((samples[4_000] - level).abs() < 1e-6);
    }

    #[test]
    fn what_is_not_read_is_named() {
        let message = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert!(message(&file("opus.webm")).contains("Opus"));
        assert!(message(b"").contains("no format that is known"));
        assert!(message(&[b'x'; 5_000]).contains("no format that is known"));
        assert!(message(&wav(16_000, 1, &[])).contains("no sound"));
        assert!(message(&wav(16_000, 12, &[0; 48])).contains("12 channels"));
        assert!(message(&wav(3_000_000, 1, &[0; 48])).contains("3000000"));
        let short = SoundLimits {
            max_seconds: 0.2,
            ..SoundLimits::DEFAULT
        };
        let long = decode(&file("tone.flac"), 16_000, &short).unwrap_err();
        assert!(matches!(long, SoundError::TooLong { .. }), "{long}");
        let small = SoundLimits {
            max_bytes: 100,
            ..SoundLimits::DEFAULT
        };
        let large = decode(&file("tone.flac"), 16_000, &small).unwrap_err();
        assert!(large.to_string().contains("100"), "{large}");
    }

    #[test]
    fn hostile_files_are_errors_or_short() {
        let mut state = 1u64;
        let mut random = move |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut refused = 0;
        for name in ["tone.flac", "tone.ogg", "tone.mp3", "tone.m4a", "opus.webm"] {
            let whole = file(name);
            for round in 0..60 {
                let mut bytes = whole.clone();
                for _ in 0..=random(6) {
                    // Headers are what lies can be told in.
                    let place = random(bytes.len().min(300));
                    bytes[place] = [0, 0xff, random(256) as u8][round % 3];
                }
                bytes.truncate(1 + random(2 * whole.len()));
                match read(&bytes) {
                    Ok(samples) => assert!(samples.iter().all(|x| x.is_finite())),
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > 50, "{refused}");
    }
}
