//! The backends that were chosen, each for the sizes at which it is the fastest.

use crate::{Backend, Pending, Reduce, Report};
use candle::{DType, Result, Shape, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// A rank on one backend or several.
#[derive(Debug)]
pub(super) struct Chosen {
    carriers: Vec<Arc<dyn Backend>>,
    /// Up to so many bytes this carrier, smallest first; the last has no limit.
    limits: Vec<(usize, usize)>,
    report: Arc<Report>,
}

impl Chosen {
    /// With the carrier `by_size[i]` for tensors near `sizes[i]`.
    pub fn new(
        carriers: Vec<Arc<dyn Backend>>,
        by_size: &[usize],
        sizes: &[usize],
        report: Arc<Report>,
    ) -> Self {
        let limit = |(i, &carrier): (usize, &usize)| {
            let limit = match (sizes.get(i), sizes.get(i + 1)) {
                // In the middle, as factors go.
                (Some(&size), Some(&next)) => (size as f64 * next as f64).sqrt() as usize,
                _ => usize::MAX,
            };
            (limit, carrier)
        };
        Self {
            limits: by_size.iter().enumerate().map(limit).collect(),
            carriers,
            report,
        }
    }

    fn of_bytes(&self, bytes: usize) -> &dyn Backend {
        let found = self.limits.iter().find(|(limit, _)| bytes <= *limit);
        &*self.carriers[found.map_or(0, |&(_, carrier)| carrier)]
    }

    fn of(&self, x: &Tensor) -> &dyn Backend {
        self.of_bytes(x.elem_count() * x.dtype().size_in_bytes())
    }
}

impl Backend for Chosen {
    /// That of small tensors.
    fn name(&self) -> &'static str {
        self.of_bytes(0).name()
    }

    fn is_capturable(&self) -> bool {
        self.carriers.iter().all(|carrier| carrier.is_capturable())
    }

    fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        self.of(x).all_reduce(x, by)
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        self.of(x).all_gather(x)
    }

    fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        self.of(x).reduce_scatter(x, by)
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        self.of(x).broadcast(x, root)
    }

    // Messages all go one way, so that they stay in their order.
    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        self.of_bytes(0).send(x, to)
    }

    fn recv(&self, shape: &Shape, dtype: DType, from: usize) -> Result<Tensor> {
        self.of_bytes(0).recv(shape, dtype, from)
    }

    fn barrier(&self) -> Result<()> {
        self.of_bytes(0).barrier()
    }

    fn exchange(
        &self,
        sends: &[(Tensor, usize)],
        receives: &[(Shape, DType, usize)],
    ) -> Result<Option<Vec<Tensor>>> {
        self.of_bytes(0).exchange(sends, receives)
    }

    /// What is large is worth it.
    fn has_background(&self) -> bool {
        self.of_bytes(usize::MAX).has_background()
    }

    fn start_all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Pending> {
        self.of(x).start_all_reduce(x, by)
    }

    fn subgroup(&self, members: &[usize]) -> Result<Option<Arc<dyn Backend>>> {
        self.of_bytes(0).subgroup(members)
    }

    fn check(&self) -> Result<()> {
        self.carriers.iter().try_for_each(|carrier| carrier.check())
    }

    fn set_timeout(&self, timeout: Duration) {
        for carrier in &self.carriers {
            carrier.set_timeout(timeout);
        }
    }

    fn report(&self) -> Option<Arc<Report>> {
        Some(self.report.clone())
    }

    fn abort(&self, reason: &str) {
        for carrier in &self.carriers {
            carrier.abort(reason);
        }
    }
}
