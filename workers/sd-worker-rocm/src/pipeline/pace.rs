//! Keeps the host from running far ahead of the device.

use candle_core::{Device, Result};

/// Lets the host enqueue a step while the device works on the one before, and no more: so a cancelled request ends
/// within a step, and progress is true. Waiting for an event behind older work leaves the device busy.
pub struct Pace {
    rocm: Option<rocm::Events>,
}

impl Pace {
    /// A pace for work on `device`.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            rocm: rocm::Events::new(device)?,
        })
    }

    /// A step has been enqueued: waits until the one before is done.
    ///
    /// # Errors
    /// The device's, those of earlier work included.
    pub fn step(&mut self) -> Result<()> {
        if let Some(events) = &mut self.rocm {
            events.step()?;
        }
        Ok(())
    }
}

mod rocm {
    use candle_core::rocm_backend::candle_rocm::{Device as Rocm, Event};
    use candle_core::{Device, Error, Result};

    /// Two marks, used in turns.
    pub struct Events {
        device: Rocm,
        marks: [Event; 2],
        steps: usize,
    }

    impl Events {
        pub fn new(device: &Device) -> Result<Option<Self>> {
            if !device.is_rocm() {
                return Ok(None);
            }
            let device = device.as_rocm_device()?.device().clone();
            let mark = || Event::new(&device).map_err(Error::wrap);
            Ok(Some(Self {
                marks: [mark()?, mark()?],
                device,
                steps: 0,
            }))
        }

        pub fn step(&mut self) -> Result<()> {
            let [this, before] = [self.steps % 2, (self.steps + 1) % 2];
            self.marks[this]
                .record(self.device.stream())
                .map_err(Error::wrap)?;
            if self.steps > 0 {
                self.marks[before].synchronize().map_err(Error::wrap)?;
            }
            self.steps += 1;
            Ok(())
        }
    }
}
