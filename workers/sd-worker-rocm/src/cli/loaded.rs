//! A model that is ready, on one device or on several.

use crate::jobs::{Job, JobQueue, QueueOptions, Replica, State};
use crate::pipeline::{Generated, ModelInfo, Pipeline, Progress};
use crate::plan::{PartCards, Plan};
use crate::request::ValidRequest;
use crate::server::ServedDevice;
use serde_json::Value;
use std::ops::ControlFlow;
use std::time::Duration;
use worker::device::{room, Selected};
use worker::serve::DeviceInfo;
use worker::{Error, Result};

/// How often is asked whether a request is to be broken off.
const ASK: Duration = Duration::from_millis(50);

/// One of the models.
pub(super) struct Model {
    pub pipeline: Pipeline,
    /// Where its parts are.
    pub cards: PartCards,
}

/// One model, or the same one on several devices.
pub(super) struct Loaded {
    pub models: Vec<Model>,
    pub devices: Vec<Selected>,
    pub plan: Plan,
    /// How long one of several devices may do no step.
    pub silence: Option<Duration>,
}

impl Loaded {
    /// What the model is.
    pub(super) fn info(&self) -> &ModelInfo {
        // There is one at least: a plan without a model is an error.
        self.models[0].pipeline.info()
    }

    /// The devices in words.
    pub(super) fn device(&self) -> DeviceInfo {
        self.devices[..].into()
    }

    /// Each device with what is on it, for programs.
    pub(super) fn devices_as_json(&self) -> Value {
        self.served().iter().map(ServedDevice::describe).collect()
    }

    /// Each device with what is on it.
    pub(super) fn served(&self) -> Vec<ServedDevice> {
        let devices = self.devices.iter().enumerate();
        devices
            .map(|(card, device)| ServedDevice {
                name: device.name.clone(),
                description: device.description.clone(),
                parts: {
                    let parts = self.plan.models.iter().flat_map(|model| model.on(card));
                    parts.map(String::from).collect()
                },
                total: room(&device.device).map(|room| room.total),
                device: device.device.clone(),
            })
            .collect()
    }

    /// Gives the model another name.
    pub(super) fn rename(&mut self, name: &str) {
        for model in &mut self.models {
            model.pipeline.rename(name.to_string());
        }
    }

    /// Makes a first picture with each model, at the same time; gives the numbers of those that failed, and why.
    pub(super) fn warm_up(&mut self) -> Vec<(usize, Error)> {
        let together = self.plan.together;
        std::thread::scope(|scope| {
            let models = self.models.iter_mut().enumerate();
            let warming = models.map(|(number, model)| {
                let warm = scope.spawn(move || match together {
                    // Halves are batches of other sizes.
                    true => model.pipeline.warm_up_in_turn(),
                    false => model.pipeline.warm_up(),
                });
                (number, warm)
            });
            let warming: Vec<_> = warming.collect();
            let failed = warming.into_iter().filter_map(|(number, warm)| {
                let panicked = || Error::Runtime("the first picture panicked".to_string());
                let result = warm.join().unwrap_or_else(|_| Err(panicked()));
                Some((number, result.err()?))
            });
            failed.collect()
        })
    }

    /// Names of the devices of a model.
    pub(super) fn names(&self, number: usize) -> String {
        joined(&self.devices, &self.models[number].cards, |device| {
            &device.name
        })
    }

    /// A queue before the models.
    ///
    /// # Errors
    /// Those of [`JobQueue::over`].
    pub(super) fn into_queue(self, options: QueueOptions) -> Result<JobQueue> {
        let several = self.devices.len() > 1;
        let options = QueueOptions {
            together: self.plan.together,
            silence: self.silence.filter(|_| several),
            ..options
        };
        let devices = self.devices;
        let replicas = self.models.into_iter().map(|model| Replica {
            device: joined(&devices, &model.cards, |device| &device.name),
            kind: joined(&devices, &model.cards, |device| &device.description),
            generator: Box::new(model.pipeline),
        });
        let replicas: Vec<Replica> = replicas.collect();
        JobQueue::over(replicas, options)
    }

    /// Makes the pictures of a request, spread over the models if there are several.
    ///
    /// # Errors
    /// Those of [`Pipeline::generate`].
    pub(super) fn generate(
        &mut self,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        // One device needs nobody to watch over it.
        if let ([only], [_]) = (&mut self.models[..], &self.devices[..]) {
            return only.pipeline.generate(request, progress);
        }
        let models = std::mem::take(&mut self.models);
        let all = Loaded {
            models,
            devices: self.devices.clone(),
            plan: self.plan.clone(),
            silence: self.silence,
        };
        let queue = all.into_queue(QueueOptions::default())?;
        let generated = through(&queue, request, progress);
        queue.stop();
        generated
    }
}

/// What there is to say of the devices of a model's parts, with commas between.
fn joined(devices: &[Selected], cards: &PartCards, of: fn(&Selected) -> &String) -> String {
    let all = cards.cards().into_iter();
    let names: Vec<&str> = all.map(|card| of(&devices[card]).as_str()).collect();
    names.join(",")
}

/// Makes the pictures of a request by a queue, which nobody else uses.
fn through(
    queue: &JobQueue,
    request: &ValidRequest,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Generated> {
    let refused = |_| Error::Runtime("the queue takes no request".to_string());
    let id = queue.submit(request.clone()).map_err(refused)?;
    let lost = || Error::Runtime("the request is lost".to_string());
    let mut told = None;
    loop {
        let job: Job = queue.job(&id).ok_or_else(lost)?;
        if job.state.is_final() {
            return match (job.state, job.outcome, job.failure) {
                (State::Completed, Some(outcome), _) => Ok(Generated {
                    videos: (outcome.pictures.iter())
                        .filter_map(|p| Some(p.video.as_ref()?.0.to_vec()))
                        .collect(),
                    images: outcome.pictures.iter().map(|p| p.image.clone()).collect(),
                    seeds: outcome.pictures.iter().map(|p| p.seed).collect(),
                    timings: outcome.timings,
                    cancelled: false,
                }),
                (_, _, Some(failure)) if failure.is_of_request() => {
                    Err(Error::Usage(failure.message))
                }
                (_, _, Some(failure)) => Err(Error::Runtime(failure.message)),
                _ => Ok(Generated {
                    cancelled: true,
                    ..Generated::default()
                }),
            };
        }
        if let Some(stage) = job.stage {
            // Asked again without news: the user may want to stop.
            told = Some((stage, job.step, job.total));
        }
        if let Some((stage, step, total)) = told {
            let report = Progress {
                stage,
                step,
                total,
                preview: None,
            };
            if progress(report).is_break() {
                queue.cancel(&id);
            }
        }
        std::thread::sleep(ASK);
    }
}
