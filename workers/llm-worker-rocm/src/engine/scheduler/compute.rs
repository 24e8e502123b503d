//! A step through the model, and the choice of tokens behind it.

use super::Scheduler;
use crate::engine::api::{Failure, GeneratedToken};
use crate::engine::device;
use crate::engine::forward::{DecodeOutput, SampleParams, Step, StepSequence};
use crate::engine::sampling;
use std::time::Instant;

impl Scheduler {
    /// Runs the model and chooses tokens for the sequences that are read to their end: one for each output, in their
    /// order.
    pub(super) fn compute(
        &mut self,
        step: &Step,
    ) -> candle_core::Result<Vec<(u64, Result<GeneratedToken, Failure>)>> {
        let (logits, answer) = if step.is_decode() {
            match self.decode(step)? {
                DecodeOutput::Logits(logits, answer) => (logits, answer),
                DecodeOutput::Tokens(answer) => {
                    let ids = step.sequences.iter().map(|s| s.id);
                    return Ok(ids.zip(sampling::read(&answer)?).collect());
                }
            }
        } else {
            (self.forward.forward(step)?, None)
        };
        if step.outputs.is_empty() {
            return Ok(Vec::new());
        }
        let ends = |s: &StepSequence, tokens: usize| s.keys == tokens;
        let mut ids = Vec::new();
        let mut requests = Vec::new();
        let mut refused = Vec::new();
        for sequence in &mut self.running {
            let len = sequence.tokens.len();
            let in_step = step.sequences.iter().find(|s| s.id == sequence.id);
            if !in_step.is_some_and(|s| ends(s, len)) {
                continue;
            }
            let row = ids.len();
            ids.push(sequence.id);
            match sequence.sampling_request() {
                Ok(request) => requests.push((row, request)),
                Err(failure) => refused.push((row, failure)),
            }
        }
        let rows: Vec<usize> = requests.iter().map(|(row, _)| *row).collect();
        let requests: Vec<_> = requests.into_iter().map(|(_, request)| request).collect();
        let logits = if rows.len() == ids.len() {
            logits
        } else {
            let rows: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
            let index = candle_core::Tensor::new(rows.as_slice(), logits.device())?;
            logits.index_select(&index, 0)?
        };
        let chosen = if requests.is_empty() {
            Vec::new()
        } else {
            sampling::choose(&logits, &requests)?
        };
        // What the device has found wrong meanwhile.
        answer.map_or(Ok(()), |answer| answer.wait().map(drop))?;
        let refused = refused.into_iter().map(|(row, f)| (ids[row], Err(f)));
        Ok(rows
            .iter()
            .map(|row| ids[*row])
            .zip(chosen)
            .chain(refused)
            .collect())
    }

    /// Computes a step of one new token for each sequence, and keeps account of what that takes.
    pub(super) fn decode(&mut self, step: &Step) -> candle_core::Result<DecodeOutput> {
        let params = |s: &StepSequence| {
            let sequence = self.running.iter().find(|r| r.id == s.id)?;
            sequence.sample_params()
        };
        let samples: Option<Vec<SampleParams>> = step.sequences.iter().map(params).collect();
        let (before, start) = (device::launches(self.forward.device()), Instant::now());
        let decoded = self.forward.decode(step, samples.as_deref())?;
        self.decode.enqueue += start.elapsed();
        self.decode.launches += device::launches(self.forward.device()) - before;
        self.decode.steps += 1;
        self.decode.graphs += u64::from(decoded.graph);
        Ok(decoded.output)
    }
}
