//! Results that a kernel has already computed, put into the graph.

use candle::{CpuStorage, CustomOp3, Layout, Result, RocmStorage, Shape, Tensor};
use std::sync::Mutex;

/// The gradients of up to three arguments, given these, the result and its gradient.
pub(crate) type Backward =
    Box<dyn Fn([&Tensor; 3], &Tensor) -> Result<[Option<Tensor>; 3]> + Send + Sync>;

/// A result of the operation `name` on `of`, with the gradients that `backward` gives; an operation of fewer arguments
/// repeats one and has `None` for it.
pub(crate) fn done(
    name: &'static str,
    of: [&Tensor; 3],
    result: RocmStorage,
    shape: Shape,
    backward: Backward,
) -> Result<Tensor> {
    let result = Mutex::new(Some(result));
    let op = Done {
        name,
        result,
        shape,
        backward,
    };
    of[0].apply_op3(of[1], of[2], op)
}

struct Done {
    name: &'static str,
    result: Mutex<Option<RocmStorage>>,
    shape: Shape,
    backward: Backward,
}

impl CustomOp3 for Done {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle::bail!("{}: the operands are not on the ROCm device", self.name)
    }

    fn rocm_fwd(
        &self,
        _: &RocmStorage,
        _: &Layout,
        _: &RocmStorage,
        _: &Layout,
        _: &RocmStorage,
        _: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        let mut result = self.result.lock().unwrap_or_else(|e| e.into_inner());
        match result.take() {
            Some(storage) => Ok((storage, self.shape.clone())),
            None => candle::bail!("{}: the result was taken", self.name),
        }
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        arg3: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [first, second, third] = (self.backward)([arg1, arg2, arg3], grad)?;
        Ok((first, second, third))
    }
}
