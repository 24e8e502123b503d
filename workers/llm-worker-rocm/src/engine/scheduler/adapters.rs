//! The adapters of a step's sequences.

use super::Scheduler;
use crate::engine::forward::Step;

impl Scheduler {
    /// Tells the model which adapters the sequences of a step want.
    pub(super) fn choose_adapters(&mut self, step: &Step) -> candle_core::Result<()> {
        if self.forward.adapters() == 0 {
            return Ok(());
        }
        let uses = step.sequences.iter().map(|sequence| {
            let found = self
                .running
                .iter()
                .find(|running| running.id == sequence.id);
            found
                .map(|running| running.adapters.clone())
                .unwrap_or_default()
        });
        let uses: Vec<_> = uses.collect();
        self.forward.use_adapters(step, &uses)
    }
}
