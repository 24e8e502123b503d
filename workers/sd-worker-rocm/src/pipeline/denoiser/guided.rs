//! A run of one denoiser or of two: the prompts' predictions, and guidance from them.
//!
//! Guidance needs a prediction for the prompt and one for the negative prompt. One device computes them as one batch,
//! or one after the other; two devices compute one each at the same time. The last two give the same numbers, as each
//! half goes through the same products; those of the batch may be others in their last bits, as larger products are
//! cut into other tiles.

use super::replay::Replayed;
use super::run::{Composition, Part, Prompts, Setting};
use super::Denoiser;
use crate::request::guidance_tuning::{Away, GuidanceTuning};
use crate::sampling::guidance::Memory;
use crate::sampling::{Guidance, NoiseLevel};
use candle_core::{Device, Result as CandleResult, Tensor};
use std::cell::RefCell;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::thread::JoinHandle;
use worker::{Error, Result};

/// Why nothing is recorded where halves are computed at the same time: a device that is recorded must be left alone.
const TWO_DEVICES: &str = "the halves of guidance are computed on two devices";

/// How a run gets the two halves of guidance.
pub enum Halves<'a> {
    /// As one batch, where the prompts fit into one.
    Together,
    /// One after the other.
    InTurn,
    /// At the same time: the negative half by this denoiser, for which the setting lies on its device.
    With(&'a mut Denoiser, &'a Setting<'a>),
}

/// Denoisers in the middle of making pictures.
pub struct Run {
    /// Of equal parts of the run.
    guidances: Vec<Option<Guidance>>,
    tuning: GuidanceTuning,
    how: How,
    /// The prompt alone, where some steps go without guidance.
    alone: Option<Replayed>,
    /// The prompt by a worse network.
    away: Option<(Away, Replayed)>,
    state: RefCell<State>,
}

/// What a run remembers of its steps.
#[derive(Default)]
struct State {
    memory: Memory,
    /// Both predictions agreed enough.
    agreed: bool,
}

/// The network's output.
pub struct Guided {
    /// With guidance.
    pub output: Tensor,
    /// For the negative prompt alone, if that was asked for.
    pub negative: Option<Tensor>,
}

enum How {
    /// The prompt alone, or both in one batch.
    One(Replayed),
    /// Negative prompt and prompt.
    InTurn([Replayed; 2]),
    /// The negative prompt elsewhere, the prompt here.
    AtOnce(Elsewhere, Replayed),
    /// Several prompts one after the other, each with its share of their sum.
    Composed(Composed),
}

struct Composed {
    parts: Vec<(Replayed, Tensor)>,
    /// The negative prompt, if anything asks for it, with its share.
    negative: Option<(Replayed, Option<Tensor>)>,
}

impl Composed {
    fn new(
        denoiser: &mut Denoiser,
        setting: &Setting,
        composition: &Composition,
        is_guided: bool,
        latents: &[usize],
    ) -> Result<Self> {
        let mut parts = Vec::new();
        for (text, share) in &composition.parts {
            let setting = Setting {
                positive: text,
                composition: None,
                ..*setting
            };
            let part = denoiser.evaluation(&setting, Prompts::Positive, latents)?;
            parts.push((part, share.clone()));
        }
        let share = composition.negative.clone();
        let negative = match is_guided || share.is_some() {
            true => {
                let negative = denoiser.evaluation(setting, Prompts::Negative, latents)?;
                Some((negative, share))
            }
            false => None,
        };
        Ok(Self { parts, negative })
    }

    /// The negative prompt's prediction, if there is one, and that of all prompts together.
    fn evaluate(
        &self,
        x: &Tensor,
        level: &NoiseLevel,
        part: Part,
    ) -> CandleResult<(Option<Tensor>, Tensor)> {
        let ask = |(negative, share): &(Replayed, Option<Tensor>)| {
            CandleResult::Ok((negative.evaluate(x, level, part)?, share.clone()))
        };
        let negative = self.negative.as_ref().map(ask).transpose()?;
        let mut sum = match &negative {
            Some((negative, Some(share))) => Some(negative.broadcast_mul(share)?),
            _ => None,
        };
        for (one, share) in &self.parts {
            let one = one.evaluate(x, level, part)?.broadcast_mul(share)?;
            sum = Some(match sum {
                Some(sum) => (sum + one)?,
                None => one,
            });
        }
        match sum {
            Some(sum) => Ok((negative.map(|(negative, _)| negative), sum)),
            None => candle_core::bail!("a composition of no prompts"),
        }
    }
}

impl Run {
    /// Prepares a run on latents of these dimensions, without the batch. A request without guidance is one denoiser's,
    /// whatever `halves` says.
    ///
    /// # Errors
    /// If a ControlNet cannot be loaded or does not fit, or a device fails.
    pub(super) fn new(
        denoiser: &mut Denoiser,
        setting: &Setting,
        halves: Halves,
        latents: &[usize],
    ) -> Result<Self> {
        let tuning = setting.request.tuning.guidance.clone();
        let guidances: Vec<Option<Guidance>> = match tuning.guidance_schedule.as_slice() {
            [] => vec![denoiser.guidance(setting.request)],
            values => {
                let mut request = setting.request.clone();
                let of = |value: &f64| {
                    (request.guidance, request.true_guidance) = (*value, *value);
                    denoiser.guidance(&request)
                };
                values.iter().map(of).collect()
            }
        };
        let away = match tuning.away() {
            Some(away) => {
                let worse = Setting {
                    perturbation: Some(&away.perturbation),
                    ..*setting
                };
                let evaluation = denoiser.evaluation(&worse, Prompts::Positive, latents)?;
                Some((away, evaluation))
            }
            None => None,
        };
        let guided = guidances.iter().any(Option::is_some);
        if let Some(composition) = setting.composition {
            let composed = Composed::new(denoiser, setting, composition, guided, latents)?;
            return Ok(Self {
                guidances,
                tuning,
                how: How::Composed(composed),
                alone: None,
                away,
                state: RefCell::default(),
            });
        }
        let mut evaluation =
            |setting: &Setting, prompts| denoiser.evaluation(setting, prompts, latents);
        let alone = match guided && tuning.is_partial() {
            true => Some(evaluation(setting, Prompts::Positive)?),
            false => None,
        };
        let how = match halves {
            _ if !guided => How::One(evaluation(setting, Prompts::Positive)?),
            Halves::Together if setting.fits_one_batch() => {
                How::One(evaluation(setting, Prompts::Both)?)
            }
            Halves::Together | Halves::InTurn => How::InTurn([
                evaluation(setting, Prompts::Negative)?,
                evaluation(setting, Prompts::Positive)?,
            ]),
            Halves::With(other, theirs) => {
                let negative = other.evaluation(theirs, Prompts::Negative, latents)?;
                let negative = negative.never(TWO_DEVICES);
                let elsewhere = Elsewhere::start(negative, other.device().clone())?;
                let positive = evaluation(setting, Prompts::Positive)?;
                How::AtOnce(elsewhere, positive.never(TWO_DEVICES))
            }
        };
        Ok(Self {
            guidances,
            tuning,
            how,
            alone,
            away,
            state: RefCell::default(),
        })
    }

    /// The guidance of a step, if it has any.
    fn guidance(&self, part: Part, level: &NoiseLevel) -> Option<&Guidance> {
        let place = part.step * self.guidances.len() / part.steps.max(1);
        let guidance = self.guidances.get(place).or(self.guidances.last())?;
        let on = self.tuning.is_on(part.step, part.steps)
            && !self.tuning.is_late(part.step, level.ratio())
            && !self.state.borrow().agreed;
        guidance.as_ref().filter(|_| on)
    }

    /// The output, guided, for latents `x`, f32 `(batch, channels, height, width)`, at a noise level in this part of the
    /// run.
    ///
    /// # Errors
    /// If a device fails.
    pub fn output(&self, x: &Tensor, level: &NoiseLevel, part: Part) -> CandleResult<Guided> {
        let guided = self.guidances.iter().any(Option::is_some);
        if guided && part.step < self.tuning.zero_steps() {
            return Ok(Guided {
                output: x.zeros_like()?,
                negative: None,
            });
        }
        let guidance = self.guidance(part, level);
        let (negative, positive) = match guidance {
            Some(_) => self.both(x, level, part)?,
            None => (None, self.positive(x, level, part)?),
        };
        let mut output = match (guidance, &negative) {
            (Some(guidance), Some(negative)) => {
                let mut state = self.state.borrow_mut();
                if let Some(enough) = self.tuning.guidance_agreement {
                    state.agreed = agreement(negative, &positive)? >= enough;
                }
                guidance.combine(negative, &positive, &mut state.memory)?
            }
            _ => positive.clone(),
        };
        if let Some((away, worse)) = &self.away {
            let scale = away.scale_at(level.timestep, part.step, part.steps);
            if scale > 0.0 {
                let worse = worse.evaluate(x, level, part)?;
                output = (output + ((&positive - worse)? * scale)?)?;
            }
        }
        let output = match guidance {
            Some(guidance) => guidance.rescaled(output, &positive)?,
            None => output,
        };
        Ok(Guided { output, negative })
    }

    /// The prompt's output alone.
    fn positive(&self, x: &Tensor, level: &NoiseLevel, part: Part) -> CandleResult<Tensor> {
        match (&self.alone, &self.how) {
            (Some(alone), _) => alone.evaluate(x, level, part),
            (None, How::One(only)) if self.guidances.iter().all(Option::is_none) => {
                only.evaluate(x, level, part)
            }
            _ => Ok(self.both(x, level, part)?.1),
        }
    }

    /// The outputs for the negative prompt and the prompt.
    fn both(
        &self,
        x: &Tensor,
        level: &NoiseLevel,
        part: Part,
    ) -> CandleResult<(Option<Tensor>, Tensor)> {
        let (negative, positive) = match &self.how {
            How::One(both) => {
                let batch = x.dim(0)?;
                let output = both.evaluate(x, level, part)?;
                (output.narrow(0, 0, batch)?, output.narrow(0, batch, batch)?)
            }
            How::InTurn([negative, positive]) => (
                negative.evaluate(x, level, part)?,
                positive.evaluate(x, level, part)?,
            ),
            How::AtOnce(elsewhere, positive) => {
                elsewhere.ask(x, level, part)?;
                let positive = positive.evaluate(x, level, part);
                // Taken also where this half has failed: the next question gets its own answer.
                let negative = elsewhere.answer();
                let (negative, positive) = (negative?, positive?);
                (negative.to_device(x.device())?, positive)
            }
            How::Composed(all) => return all.evaluate(x, level, part),
        };
        Ok((Some(negative), positive))
    }
}

/// How much two predictions agree: the least cosine of the angle between those of each image.
fn agreement(a: &Tensor, b: &Tensor) -> CandleResult<f64> {
    let dot = |a: &Tensor, b: &Tensor| (a * b)?.flatten_from(1)?.sum(1);
    let lengths = (dot(a, a)? * dot(b, b)?)?.sqrt()?.maximum(1e-12)?;
    let cosines = (dot(a, b)? / lengths)?;
    Ok(f64::from(cosines.min_all()?.to_scalar::<f32>()?))
}

/// What is asked of the other device: latents there, their noise level, the part of the run.
type Question = (Tensor, NoiseLevel, Part);

/// A half that another device computes, driven by a thread of its own.
struct Elsewhere {
    device: Device,
    /// Taken to tell the thread that there is nothing more to do.
    questions: Option<Sender<Question>>,
    answers: Receiver<CandleResult<Tensor>>,
    thread: Option<JoinHandle<()>>,
}

impl Elsewhere {
    fn start(evaluation: Replayed, device: Device) -> Result<Self> {
        let (questions, asked) = channel::<Question>();
        let (answer, answers) = channel();
        let thread = std::thread::Builder::new()
            .name("guidance".to_string())
            .spawn(move || {
                for (x, level, part) in asked {
                    if answer.send(evaluation.evaluate(&x, &level, part)).is_err() {
                        break;
                    }
                }
            })
            .map_err(|e| Error::Runtime(format!("cannot start a thread: {e}")))?;
        Ok(Self {
            device,
            questions: Some(questions),
            answers,
            thread: Some(thread),
        })
    }

    /// The latents are on their way before this device's own half is enqueued: a copy waits for what was enqueued before.
    fn ask(&self, x: &Tensor, level: &NoiseLevel, part: Part) -> CandleResult<()> {
        let x = x.to_device(&self.device)?;
        let questions = self.questions.as_ref();
        match questions.map(|questions| questions.send((x, *level, part))) {
            Some(Ok(())) => Ok(()),
            _ => gone(),
        }
    }

    fn answer(&self) -> CandleResult<Tensor> {
        self.answers.recv().unwrap_or_else(|_| gone())
    }
}

fn gone<T>() -> CandleResult<T> {
    candle_core::bail!("the thread of guidance's other half has panicked; the log says where")
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.questions = None;
        if let Some(thread) = self.thread.take() {
            // Its memory on the device is given back with it; a panic was told as an answer.
            let _ = thread.join();
        }
    }
}
