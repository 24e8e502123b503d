//! Options of solvers: what they make of a sampler.

use super::super::solver::dpm::{DpmKind, Held, SecondOrder};
use super::super::solver::restrain::Restrain;
use super::super::solver::sa::SaKind;
use super::super::solver::unipc::UniPcKind;
use super::super::Sampler;
use super::classes::{Class, Kind};
use super::own::{Last, Method, Own, Rounding};
use serde::Deserialize;

/// Options of the classes' own, as far as a file names them; the classes' defaults differ.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Options {
    solver_order: Option<usize>,
    predictor_order: Option<usize>,
    corrector_order: Option<usize>,
    solver_type: Option<String>,
    algorithm_type: Option<String>,
    lower_order_final: Option<bool>,
    euler_at_final: Option<bool>,
    final_sigmas_type: Option<String>,
    predict_x0: Option<bool>,
    disable_corrector: Option<Vec<usize>>,
    clip_sample: Option<bool>,
    clip_sample_range: Option<f64>,
    thresholding: Option<bool>,
    dynamic_thresholding_ratio: Option<f64>,
    sample_max_value: Option<f64>,
    stochastic_sampling: Option<bool>,
}

impl Options {
    /// The sampler, where an option of a class decides.
    pub fn variant(&self, class: &Class) -> Sampler {
        match (class.kind, self.algorithm_type.as_deref()) {
            (Kind::Dpm | Kind::EdmDpm, Some("sde-dpmsolver++" | "sde-dpmsolver")) => {
                Sampler::DpmPlusPlus2MSde
            }
            (Kind::Flow, _) if self.stochastic_sampling == Some(true) => Sampler::Lcm,
            _ => class.sampler,
        }
    }

    /// How the sampler is to be; `named` where the levels are not the spaced time steps.
    ///
    /// # Errors
    /// Names the option that is not followed, or out of range.
    pub fn own(&self, class: &Class, rounding: Rounding, named: bool) -> Result<Own, String> {
        let ends = match class.kind {
            Kind::Euler | Kind::Dpm | Kind::Singlestep | Kind::UniPc | Kind::Edm | Kind::EdmDpm => {
                match self.final_sigmas_type.as_deref() {
                    None | Some("zero") => Last::Clean,
                    Some("sigma_min") if class.kind == Kind::UniPc => Last::LeastOrSame,
                    Some("sigma_min") => Last::Least,
                    Some(other) => {
                        return Err(format!(
                        "final_sigmas_type {other:?} is not supported; there are zero and sigma_min"
                    ))
                    }
                }
            }
            Kind::Deis | Kind::SaSolver => Last::LeastOrSame,
            _ => Last::Clean,
        };
        let method = match class.kind {
            Kind::Dpm | Kind::Singlestep | Kind::EdmDpm => {
                let kind = self.dpm(class, ends)?;
                match class.kind {
                    Kind::Singlestep => Method::Singlestep(kind),
                    _ => Method::Dpm(kind),
                }
            }
            Kind::Deis => Method::Dpm(DpmKind::deis(self.order(3)?, self.lowered(true))),
            Kind::UniPc => Method::UniPc(self.unipc(ends, named)?),
            Kind::SaSolver => Method::Sa(self.sa()?),
            Kind::FlowLcm => Method::Fresh,
            Kind::Ddpm => Method::Ddpm,
            Kind::Flow if self.stochastic_sampling == Some(true) => Method::Fresh,
            _ => Method::AsNamed,
        };
        Ok(Own {
            method,
            restrain: self.restrain(class)?,
            last: ends,
            rounding,
            eta: (class.kind == Kind::Ddpm).then_some(1.0),
        })
    }

    fn order(&self, most: usize) -> Result<usize, String> {
        let order = self.solver_order.unwrap_or(2);
        match (1..=most).contains(&order) {
            true => Ok(order),
            false => Err(format!("solver_order {order}; it goes from 1 to {most}")),
        }
    }

    fn lowered(&self, usual: bool) -> bool {
        self.lower_order_final.unwrap_or(usual)
    }

    fn dpm(&self, class: &Class, last: Last) -> Result<DpmKind, String> {
        let algorithm = self.algorithm_type.as_deref().unwrap_or("dpmsolver++");
        let (held, sde) = match algorithm {
            "dpmsolver++" | "deis" => (Held::Image, false),
            "sde-dpmsolver++" => (Held::Image, true),
            "dpmsolver" if class.kind != Kind::EdmDpm => (Held::Noise, false),
            "sde-dpmsolver" if class.kind == Kind::Dpm => (Held::Noise, true),
            other => return Err(format!("algorithm_type {other:?} is not supported")),
        };
        let order = self.order(3)?;
        if held == Held::Noise && last == Last::Clean {
            return Err(format!(
                "algorithm_type {algorithm:?} goes with final_sigmas_type sigma_min only"
            ));
        }
        if sde && order == 3 && (held == Held::Noise || class.kind == Kind::EdmDpm) {
            return Err(format!(
                "solver_order 3 is not defined for algorithm_type {algorithm:?}"
            ));
        }
        let second = match self.solver_type.as_deref() {
            // What other classes' files have is taken for midpoint, as diffusers does.
            None | Some("midpoint" | "logrho" | "bh1" | "bh2") => SecondOrder::Midpoint,
            Some("heun") => SecondOrder::Heun,
            Some(other) => return Err(format!("solver_type {other:?} is not supported")),
        };
        Ok(DpmKind {
            held,
            sde,
            order,
            second,
            lower_order_final: self.lowered(class.kind != Kind::Singlestep),
            euler_at_final: self.euler_at_final.unwrap_or(false),
            diffusers_curvature: true,
        })
    }

    fn sa(&self) -> Result<SaKind, String> {
        let order = |name: &str, order: Option<usize>| match order.unwrap_or(2) {
            order @ 1..=4 => Ok(order),
            order => Err(format!("{name} {order}; it goes from 1 to 4")),
        };
        Ok(SaKind {
            predictor: order("predictor_order", self.predictor_order)?,
            corrector: order("corrector_order", self.corrector_order)?,
            image: match self.algorithm_type.as_deref() {
                // What other classes' files have is taken for the usual one.
                None | Some("data_prediction" | "dpmsolver++" | "sde-dpmsolver++") => true,
                Some("noise_prediction") => false,
                Some(other) => return Err(format!("algorithm_type {other:?} is not supported")),
            },
            lower_order_final: self.lowered(true),
        })
    }

    fn unipc(&self, last: Last, named: bool) -> Result<UniPcKind, String> {
        let order = self.order(4)?;
        let exponential = match self.solver_type.as_deref() {
            None | Some("bh2" | "midpoint" | "heun" | "logrho") => true,
            Some("bh1") => false,
            Some(other) => return Err(format!("solver_type {other:?} is not supported")),
        };
        let image = self.predict_x0.unwrap_or(true);
        let lower_order_final = self.lowered(true);
        let ends_in_noise = last == Last::LeastOrSame && !named;
        if !ends_in_noise && (!image || !lower_order_final && order > 1) {
            return Err(
                "predict_x0 false, and lower_order_final false, go with final_sigmas_type sigma_min and the usual noise levels only"
                    .to_string(),
            );
        }
        Ok(UniPcKind {
            order,
            exponential,
            image,
            lower_order_final,
            uncorrected: self.disable_corrector.clone().unwrap_or_default(),
        })
    }

    fn restrain(&self, class: &Class) -> Result<Option<Restrain>, String> {
        let solver = matches!(
            class.kind,
            Kind::Dpm | Kind::Singlestep | Kind::Deis | Kind::UniPc | Kind::SaSolver | Kind::EdmDpm
        );
        let clips = matches!(class.kind, Kind::Clipped | Kind::Ddpm);
        let heun = class.sampler == Sampler::Heun;
        if (solver || clips && !heun) && self.thresholding == Some(true) {
            let quantile = self.dynamic_thresholding_ratio.unwrap_or(0.995);
            let most = self.sample_max_value.unwrap_or(1.0);
            let sound = (0.0..=1.0).contains(&quantile) && most >= 1.0 && most.is_finite();
            if !sound {
                return Err(
                    "dynamic_thresholding_ratio goes from 0 to 1, sample_max_value from 1 on"
                        .to_string(),
                );
            }
            return Ok(Some(Restrain::Threshold { quantile, most }));
        }
        // DDIM and DDPM clip where nothing is said.
        let usual = class.sampler == Sampler::Ddim;
        if !clips || !self.clip_sample.unwrap_or(usual) {
            return Ok(None);
        }
        let range = self.clip_sample_range.unwrap_or(1.0);
        match range > 0.0 && range.is_finite() {
            true => Ok(Some(Restrain::Clip(range))),
            false => Err(format!("clip_sample_range {range}; it is above 0")),
        }
    }
}
