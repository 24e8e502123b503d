//! A device with hip-sim's MIOpen, which counts the calls and reports wrong use, and problems to run on it.

use crate::common::{self, assert_close, download, Element, HostTensor, Layout, Rng};
use candle_rocm::miopen::{decisions, Decision};
use candle_rocm::ops::conv::{
    conv1d, conv2d, conv_transpose1d, conv_transpose2d, Conv, ConvTranspose, Method,
};
use candle_rocm::{Buffer, DType, Device, Result, View};
use hip_sim::client::Client;
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub const VARIABLE: &str = "CANDLE_ROCM_MIOPEN";
pub const COUNT: &CStr = c"miopenConvolutionForwardGetSolutionCount";
pub const COMPILE: &CStr = c"miopenConvolutionForwardCompileSolution";
pub const RUN: &CStr = c"miopenConvolutionForwardImmediate";
pub const FIND: &CStr = c"miopenFindConvolutionForwardAlgorithm";
pub const CREATE: &CStr = c"miopenCreateWithStream";

/// A device of its own, alone with the simulator's counters, which must have nothing to report in the end.
pub struct Bench {
    pub device: Device,
    pub sim: Client,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    pub fn new(mode: Option<&str>) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        match mode {
            Some(mode) => std::env::set_var(VARIABLE, mode),
            None => std::env::remove_var(VARIABLE),
        }
        // These tests count calls; whether something is verified depends on what ran before.
        std::env::set_var("CANDLE_ROCM_VERIFY", "off");
        let device = common::device();
        let sim = Client::find().expect("these tests need hip-sim's MIOpen");
        sim.take_reports();
        sim.reset_counters();
        Bench {
            device,
            sim,
            _turn: turn,
        }
    }

    pub fn calls(&self, function: &CStr) -> u64 {
        self.sim.miopen_calls(function)
    }

    pub fn is_cdna(&self) -> bool {
        self.device.properties().wave_size == 64
    }

    /// Has a problem measured, which puts it into MIOpen's database: on RDNA, this MIOpen offers nothing worth taking
    /// before.
    pub fn learn<T: Element>(&self, problem: &Problem) {
        if !self.is_cdna() {
            std::env::set_var(VARIABLE, "tune");
            problem.check::<T>(&common::device(), CONTIGUOUS);
            std::env::remove_var(VARIABLE);
            self.sim.reset_counters();
        }
    }

    /// The one decision that was made.
    pub fn decision(&self) -> Decision {
        let mut decisions = decisions(&self.device);
        assert_eq!(decisions.len(), 1, "{decisions:?}");
        decisions.remove(0)
    }

    /// Runs a problem with the default method and compares it with the direct one. Returns whether MIOpen computed it.
    pub fn check<T: Element>(&self, problem: &Problem, layouts: [Layout; 2]) -> bool {
        let before = self.calls(RUN);
        problem.check::<T>(&self.device, layouts);
        self.calls(RUN) > before
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let reports = self.sim.take_reports();
        if !std::thread::panicking() {
            assert_eq!(reports, Vec::<String>::new());
            assert!(self.sim.guards_intact());
        }
    }
}

#[derive(Clone, Debug)]
pub struct Problem {
    pub x: Vec<usize>,
    pub c_out: usize,
    pub taps: Vec<usize>,
    pub transposed: bool,
    pub padding: usize,
    pub output_padding: usize,
    pub stride: usize,
    pub dilation: usize,
}

/// Large enough for columns: more than 4 outputs, more than 16 products.
pub fn image() -> Problem {
    Problem {
        x: vec![2, 17, 9, 7],
        c_out: 6,
        taps: vec![3, 3],
        transposed: false,
        padding: 1,
        output_padding: 0,
        stride: 1,
        dilation: 1,
    }
}

pub fn sequence() -> Problem {
    Problem {
        x: vec![2, 18, 23],
        taps: vec![3],
        padding: 2,
        ..image()
    }
}

impl Problem {
    pub fn transposed(self) -> Self {
        Problem {
            transposed: true,
            ..self
        }
    }

    pub fn kernel_dims(&self) -> Vec<usize> {
        let c_in = self.x[1];
        let channels = if self.transposed {
            [c_in, self.c_out]
        } else {
            [self.c_out, c_in]
        };
        channels.iter().chain(&self.taps).copied().collect()
    }

    pub fn run(&self, x: &View, kernel: &View, method: Option<Method>) -> Result<Buffer> {
        let device = x.buffer.device();
        let &Problem {
            padding,
            output_padding,
            stride,
            dilation,
            ..
        } = self;
        let plain = Conv {
            padding,
            stride,
            dilation,
            method,
        };
        let transposed = ConvTranspose {
            padding,
            output_padding,
            stride,
            dilation,
            method,
        };
        match (self.x.len(), self.transposed) {
            (3, false) => conv1d(device, x, kernel, plain),
            (3, true) => conv_transpose1d(device, x, kernel, transposed),
            (_, false) => conv2d(device, x, kernel, plain),
            (_, true) => conv_transpose2d(device, x, kernel, transposed),
        }
    }

    pub fn data<T: Element>(&self, layouts: [Layout; 2]) -> [HostTensor<T>; 2] {
        let random = |seed: u64, dims: &[usize], layout| {
            HostTensor::with_layout(dims, layout, |n| Rng::new(seed).vec(n, -1.0, 1.0))
        };
        [
            random(1, &self.x, layouts[0]),
            random(2, &self.kernel_dims(), layouts[1]),
        ]
    }

    pub fn check<T: Element>(&self, device: &Device, layouts: [Layout; 2]) {
        let [x, kernel] = self.data::<T>(layouts);
        let (x_buffer, kernel_buffer) = (x.upload(device), kernel.upload(device));
        let run = |method| {
            let y = self.run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), method);
            download::<T>(
                device,
                &y.unwrap_or_else(|error| panic!("{self:?}: {error}")),
            )
        };
        let got = run(None);
        let want: Vec<f64> = run(Some(Method::Direct))
            .iter()
            .map(|v| v.to_f64())
            .collect();
        let limit = if T::DTYPE == DType::F32 { 1e-11 } else { 1e-5 };
        assert_close(&got, &want, limit, &format!("{} {self:?}", T::DTYPE));
    }
}

pub const CONTIGUOUS: [Layout; 2] = [Layout::Contiguous; 2];
