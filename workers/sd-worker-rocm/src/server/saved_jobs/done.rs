//! What became of jobs that have ended, with their pictures.

use super::{is_id, remove, time, write, SavedJobs, FORMAT, MAX_DONE};
use crate::image_io::{self, DecodeLimits, Format};
use crate::jobs::{Failure, Job, Outcome, Picture, State};
use crate::video::VideoFormat;
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use worker::file;
use worker::ids::Token;
use worker::time::unix_seconds;
use worker::{Error, Result};

/// Bytes of a video's file that are read.
const MAX_VIDEO: u64 = 1 << 30;
/// Most pictures of a job.
const MAX_PICTURES: usize = 1024;

/// A job that has ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Done {
    format: u32,
    id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    prompt: String,
    created: f64,
    started: Option<f64>,
    finished: f64,
    total: usize,
    /// Of each picture.
    seeds: Vec<u64>,
    /// Code and message of a job that failed.
    failure: Option<(String, String)>,
}

impl SavedJobs {
    /// Writes what became of a job, with its pictures, and forgets what it was.
    ///
    /// # Errors
    /// The operating system's, and those of writing PNG; the job will then be done again.
    pub(in crate::server) fn finish(&self, job: &Job) -> Result<()> {
        let pictures = job
            .outcome
            .as_ref()
            .map_or(&[][..], |outcome| &outcome.pictures);
        let folder = self.folder.join("done").join(&job.id);
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder);
        made.map_err(Error::io(&folder))?;
        for (number, picture) in pictures.iter().enumerate() {
            let text = Some(picture.parameters.as_str());
            let bytes = image_io::encode(&picture.image, Format::Png, 0, text)?;
            let path = folder.join(format!("{number}.png"));
            write(&path, &bytes).map_err(Error::io(&path))?;
            if let Some((bytes, format)) = &picture.video {
                let path = folder.join(video_name(number, *format));
                write(&path, bytes).map_err(Error::io(&path))?;
            }
        }
        let done = Done {
            format: FORMAT,
            id: job.id.clone(),
            prompt: job.prompt.to_string(),
            created: unix_seconds(job.created),
            started: job.started.map(unix_seconds),
            finished: unix_seconds(job.finished.unwrap_or_else(SystemTime::now)),
            total: job.total,
            seeds: pictures.iter().map(|picture| picture.seed).collect(),
            failure: job
                .failure
                .as_ref()
                .map(|f| (f.code.to_string(), f.message.clone())),
        };
        let path = folder.join("job.json");
        let text = serde_json::to_vec(&done).map_err(|e| Error::Runtime(e.to_string()))?;
        write(&path, &text).map_err(Error::io(&path))?;
        self.forget(&job.id);
        Ok(())
    }

    /// The jobs that have ended since `oldest`, the newest `most` of them; others are removed.
    pub(in crate::server) fn finished(&self, oldest: SystemTime, most: usize) -> Vec<Job> {
        let folder = self.folder.join("done");
        let mut known: Vec<(SystemTime, PathBuf, Done)> = Vec::new();
        for path in self.entries(&folder) {
            match read_done(&path) {
                Ok(done) => known.push((time(done.finished), path, done)),
                Err(reason) => self.set_aside(&path, &reason),
            }
        }
        known.sort_by_key(|(finished, ..)| std::cmp::Reverse(*finished));
        let mut jobs = Vec::new();
        for (finished, path, done) in known {
            if finished < oldest || jobs.len() == most {
                remove(&path);
                continue;
            }
            match read_job(&path, done) {
                Ok(job) => {
                    // It may have ended between its end and the end of its file.
                    self.forget(&job.id);
                    jobs.push(job);
                }
                Err(reason) => self.set_aside(&path, &reason),
            }
        }
        jobs
    }

    /// Removes what became of jobs that nobody knows any more.
    pub(in crate::server) fn tidy(&self, is_known: impl Fn(&str) -> bool) {
        for path in self.entries(&self.folder.join("done")) {
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| is_id(name) && !is_known(name)) {
                remove(&path);
            }
        }
    }
}

/// The file of a job's video, beside its first frame.
fn video_name(number: usize, format: VideoFormat) -> String {
    format!("{number}.video.{}", format.extension())
}

fn read_done(folder: &Path) -> std::result::Result<Done, String> {
    let name = folder
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    if !is_id(name) || folder.is_symlink() {
        return Err("its name is none of a job's".to_string());
    }
    let text = file::read(&folder.join("job.json"), MAX_DONE).map_err(|e| e.to_string())?;
    let done: Done = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    if done.format != FORMAT || done.id != name || done.seeds.len() > MAX_PICTURES {
        return Err("it is of another form, or of another job".to_string());
    }
    if done.seeds.is_empty() == done.failure.is_none() {
        return Err("it has neither pictures nor a failure, or both".to_string());
    }
    Ok(done)
}

fn read_job(folder: &Path, done: Done) -> std::result::Result<Job, String> {
    let limits = DecodeLimits::default();
    let mut pictures = Vec::new();
    for (number, seed) in done.seeds.iter().enumerate() {
        let path = folder.join(format!("{number}.png"));
        let bytes = file::read(&path, limits.max_bytes as u64).map_err(|e| e.to_string())?;
        let image = image_io::decode(&bytes, &limits).map_err(|e| e.to_string())?;
        let text = image_io::parameters_of(&bytes).map_err(|e| e.to_string())?;
        let video = VideoFormat::ALL.into_iter().find_map(|format| {
            let path = folder.join(video_name(number, format));
            path.exists().then_some((path, format))
        });
        let video = match video {
            Some((path, format)) => {
                let bytes = file::read(&path, MAX_VIDEO).map_err(|e| e.to_string())?;
                Some((Arc::new(bytes), format))
            }
            None => None,
        };
        pictures.push(Picture {
            video,
            image: image_io::to_rgb(&image),
            seed: *seed,
            parameters: text.unwrap_or_default(),
            token: Token::new(),
        });
    }
    let failure = done
        .failure
        .map(|(code, message)| Failure::saved(&code, message));
    let state = match failure {
        Some(_) => State::Failed,
        None => State::Completed,
    };
    Ok(Job {
        id: done.id,
        state,
        prompt: done.prompt.into(),
        position: 0,
        stage: None,
        step: if failure.is_none() { done.total } else { 0 },
        total: done.total,
        batch: pictures.len(),
        created: time(done.created),
        started: done.started.map(time),
        finished: Some(time(done.finished)),
        preview: None,
        outcome: failure.is_none().then(|| {
            Arc::new(Outcome {
                pictures,
                ..Outcome::default()
            })
        }),
        failure,
    })
}
