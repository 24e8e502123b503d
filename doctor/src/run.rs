//! The examination: which sections run, on which GPUs, one after the other.

use crate::child::{Job, Starter};
use crate::privacy::Mask;
use crate::report::{Report, SectionReport, Severity, Verdict, FORMAT};
use crate::section::{Scope, Section};
use crate::{sections, Options};
use worker::signal::Interrupt;

/// What to examine.
pub(crate) struct Plan<'a> {
    pub sections: Vec<&'a dyn Section>,
    /// Names of the sections that the user wants; all if empty.
    pub only: Vec<String>,
    /// The one GPU to look at; all if none.
    pub ordinal: Option<usize>,
    pub options: Options,
    /// Takes out names; none if the user wants them in.
    pub mask: Option<Mask>,
}

/// Who is told how it goes.
pub(crate) trait Audience {
    /// A section begins, or does something else now.
    fn progress(&mut self, section: &str, device: Option<&str>, text: &str);
    /// A section has ended.
    fn section(&mut self, report: &SectionReport);
}

impl Plan<'_> {
    fn wants(&self, section: &dyn Section) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == section.name())
    }

    /// Runs the sections.
    pub fn run(
        &self,
        starter: &Starter,
        interrupt: &Interrupt,
        audience: &mut dyn Audience,
    ) -> Report {
        let time = worker::time::timestamp();
        let mut reports = Vec::new();
        let of = |scope| (self.sections.iter()).filter(move |section| section.scope() == scope);
        let needs_gpus = of(Scope::Gpu).any(|section| self.wants(*section));
        let mut gpus = Gpus::default();
        for section in of(Scope::Machine) {
            // The first of them knows the GPUs, wanted or not.
            let knows_gpus = section.name() == sections::system::NAME;
            if !(self.wants(*section) || knows_gpus && needs_gpus) {
                continue;
            }
            let report = self.one(starter, *section, None, interrupt, audience);
            if knows_gpus {
                gpus = Gpus::read(&report);
            }
            let broken = report.facts.is_none() || gpus.usable.is_empty();
            if self.wants(*section) || (knows_gpus && broken) {
                audience.section(&report);
                reports.push(report);
            }
        }
        let ordinals: Vec<usize> = match self.ordinal {
            Some(ordinal) => vec![ordinal],
            None => gpus.usable.clone(),
        };
        for section in of(Scope::Gpu).filter(|section| self.wants(**section)) {
            if ordinals.is_empty() {
                let mut report = SectionReport::new(section.name(), None);
                report.notes.push("no GPU answers".to_string());
                audience.section(&report);
                reports.push(report);
            }
        }
        for ordinal in ordinals {
            for section in of(Scope::Gpu).filter(|section| self.wants(**section)) {
                if interrupt.is_raised() {
                    break;
                }
                let report = match gpus.why_not(ordinal) {
                    Some(why) => {
                        let mut report =
                            SectionReport::new(section.name(), Some(format!("rocm:{ordinal}")));
                        report.find(Severity::Error, "device", why, "see the section system");
                        report
                    }
                    None => self.one(starter, *section, Some(ordinal), interrupt, audience),
                };
                audience.section(&report);
                reports.push(report);
            }
        }
        let mut verdict = Verdict::of(&reports);
        if interrupt.is_raised() {
            verdict.text = format!("Interrupted. Until then: {}", verdict.text);
        }
        Report {
            format: FORMAT,
            program: format!("{} {}", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")),
            time,
            options: self.options.clone(),
            sections: reports,
            verdict,
        }
    }

    fn one(
        &self,
        starter: &Starter,
        section: &dyn Section,
        ordinal: Option<usize>,
        interrupt: &Interrupt,
        audience: &mut dyn Audience,
    ) -> SectionReport {
        let job = Job {
            section: section.name().to_string(),
            ordinal,
            options: self.options.clone(),
        };
        let device = ordinal.map(|ordinal| format!("rocm:{ordinal}"));
        let mut progress = |text: &str| audience.progress(section.name(), device.as_deref(), text);
        progress(section.about());
        let report = starter.run(section, &job, interrupt, &mut progress);
        match &self.mask {
            Some(mask) => masked(mask, report),
            None => report,
        }
    }
}

fn masked(mask: &Mask, report: SectionReport) -> SectionReport {
    let name = report.name.clone();
    let masked = serde_json::to_value(&report).map(|value| mask.value(value));
    match masked.and_then(serde_json::from_value) {
        Ok(report) => report,
        // A user called like one of the report's fields: rather nothing than their name.
        Err(_) => {
            let mut empty = SectionReport::new(&name, None);
            let text = "what it found cannot be shown without names".to_string();
            empty.find(Severity::Error, "names", text, "run it with --keep-names");
            empty
        }
    }
}

/// The GPUs that HIP shows, as the section `system` tells them.
#[derive(Default)]
struct Gpus {
    usable: Vec<usize>,
    problems: Vec<Option<String>>,
}

impl Gpus {
    fn read(report: &SectionReport) -> Self {
        let gpus = report
            .facts
            .as_ref()
            .and_then(|facts| facts["devices"]["gpus"].as_array());
        let problems: Vec<Option<String>> = (gpus.into_iter().flatten())
            .map(|gpu| gpu["problem"].as_str().map(str::to_string))
            .collect();
        let usable =
            |(ordinal, problem): (usize, &Option<String>)| problem.is_none().then_some(ordinal);
        Gpus {
            usable: problems.iter().enumerate().filter_map(usable).collect(),
            problems,
        }
    }

    fn why_not(&self, ordinal: usize) -> Option<String> {
        match self.problems.get(ordinal) {
            Some(problem) => problem.clone(),
            None => Some(format!(
                "there is no GPU rocm:{ordinal}; HIP shows {}",
                self.problems.len()
            )),
        }
    }
}
