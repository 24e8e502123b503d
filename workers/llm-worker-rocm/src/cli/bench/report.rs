//! The results of a benchmark, as a table or as JSON.

use super::{Kind, Test};
use crate::engine::api::{DecodeFigures, DraftFigures};
use crate::split::SplitReport;
use serde::Serialize;
use worker::cli::output::{print_json, print_line};
use worker::device::BufferMemory;
use worker::Result;

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub model: &'a str,
    pub architecture: &'a str,
    pub bytes: u64,
    pub parameters: u64,
    pub device: &'a str,
    /// How several devices share the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<&'a SplitReport>,
    pub results: &'a [Measured],
    /// Behind the last test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<BufferMemory>,
}

impl Report<'_> {
    /// Prints one JSON object, or a table.
    pub(super) fn print(&self, json: bool) -> Result<()> {
        match json {
            true => print_json(self),
            false => self.print_table(),
        }
    }

    fn print_table(&self) -> Result<()> {
        let results = self.results;
        print_line(&format!(
            "{}: {:.2} GiB, {:.2} B parameters; {}",
            self.model,
            self.bytes as f64 / f64::from(1u32 << 30),
            self.parameters as f64 / 1e9,
            self.device
        ))?;
        if let Some(split) = self.split {
            print_line(&split.to_string())?;
        }
        let mut columns = vec![
            Column::new("test", results.iter().map(|r| r.test.clone())),
            Column::new(
                "tokens/s",
                results
                    .iter()
                    .map(|r| format!("{:.2} ± {:.2}", r.tokens_per_second, r.deviation)),
            ),
        ];
        if results.iter().any(|r| r.decode.is_some()) {
            let cells = |cell: fn(&HostCost) -> String| {
                results
                    .iter()
                    .map(move |r| r.decode.as_ref().map(cell).unwrap_or_default())
            };
            columns.extend([
                Column::new(
                    "enqueue µs/step",
                    cells(|cost| format!("{:.1}", cost.enqueue_microseconds)),
                ),
                Column::new(
                    "launches/step",
                    cells(|cost| format!("{:.1}", cost.launches)),
                ),
                Column::new(
                    "graphs",
                    cells(|cost| format!("{:.0} %", 100.0 * cost.graphs)),
                ),
            ]);
        }
        if results.iter().any(|r| r.drafts.is_some()) {
            let cell = |drafts: &Drafts| format!("{} of {}", drafts.accepted, drafts.drafted);
            let cells = results
                .iter()
                .map(|r| r.drafts.as_ref().map(cell).unwrap_or_default());
            columns.push(Column::new("drafts right", cells));
        }
        for line in 0..results.len() + 2 {
            let cells: Vec<String> = columns
                .iter()
                .enumerate()
                .map(|(i, column)| column.line(line, i > 0))
                .collect();
            print_line(&format!("|{}|", cells.join("|")))?;
        }
        Ok(())
    }
}

/// A test's result.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    test: String,
    batch: usize,
    n_prompt: usize,
    n_gen: usize,
    /// Tokens per second, all sequences together: mean, standard deviation, and each run's.
    tokens_per_second: f64,
    deviation: f64,
    samples: Vec<f64>,
    /// Of a test that generates, on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    decode: Option<HostCost>,
    /// Guesses at next tokens, where there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    drafts: Option<Drafts>,
}

/// Guesses at next tokens, of all runs together.
#[derive(Debug, Clone, Serialize)]
struct Drafts {
    /// Those that steps have checked.
    drafted: u64,
    /// Of these, the ones that were right.
    accepted: u64,
}

impl Drafts {
    fn new(figures: DraftFigures) -> Option<Self> {
        (figures.drafted > 0).then_some(Self {
            drafted: figures.drafted,
            accepted: figures.accepted,
        })
    }
}

/// What a step of one new token for each sequence costs the host, on average.
#[derive(Debug, Clone, Serialize)]
struct HostCost {
    /// Time until the device has its work.
    enqueue_microseconds: f64,
    /// A graph counts as one.
    launches: f64,
    /// Part of the steps that were enqueued as a graph.
    graphs: f64,
}

impl HostCost {
    /// Nothing if nothing was launched: the host computes itself.
    fn new(figures: DecodeFigures) -> Option<Self> {
        let steps = figures.steps as f64;
        (figures.launches > 0).then(|| Self {
            enqueue_microseconds: figures.enqueue.as_secs_f64() * 1e6 / steps,
            launches: figures.launches as f64 / steps,
            graphs: figures.graphs as f64 / steps,
        })
    }
}

impl Measured {
    pub(super) fn new(
        test: Test,
        samples: Vec<f64>,
        figures: DecodeFigures,
        drafts: DraftFigures,
    ) -> Self {
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
        let (n_prompt, n_gen) = match test.kind {
            Kind::Prompt => (test.tokens, 0),
            Kind::Generate => (0, test.tokens),
        };
        Self {
            test: test.name(),
            batch: test.batch,
            tokens_per_second: mean,
            deviation: (squares / (count - 1.0).max(1.0)).sqrt(),
            n_prompt,
            n_gen,
            samples,
            decode: match test.kind {
                Kind::Prompt => None,
                Kind::Generate => HostCost::new(figures),
            },
            drafts: Drafts::new(drafts),
        }
    }
}

/// A column of a table, its title first.
struct Column {
    cells: Vec<String>,
    width: usize,
}

impl Column {
    fn new(title: &str, cells: impl Iterator<Item = String>) -> Self {
        let cells: Vec<String> = std::iter::once(title.to_string()).chain(cells).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max();
        Self {
            width: width.unwrap_or(0),
            cells,
        }
    }

    /// A cell of the title's line, the rule's, or a result's.
    fn line(&self, line: usize, right: bool) -> String {
        let Self { cells, width } = self;
        match (line, right) {
            (1, true) => format!("-{:->width$}:", ""),
            (1, false) => format!("-{:->width$}-", ""),
            (0, true) => format!(" {:>width$} ", cells[0]),
            (0, false) => format!(" {:<width$} ", cells[0]),
            (_, true) => format!(" {:>width$} ", cells[line - 1]),
            (_, false) => format!(" {:<width$} ", cells[line - 1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations() {
        let test = Test {
            kind: Kind::Generate,
            tokens: 8,
            batch: 2,
        };
        let figures = DecodeFigures {
            steps: 4,
            graphs: 3,
            launches: 20,
            enqueue: std::time::Duration::from_micros(10),
        };
        let drafts = DraftFigures {
            drafts: 2,
            drafted: 9,
            accepted: 4,
        };
        let measured = Measured::new(test, vec![1.0, 2.0, 3.0], figures, drafts);
        let found = measured.drafts.as_ref().unwrap();
        assert_eq!((found.drafted, found.accepted), (9, 4));
        assert_eq!((measured.tokens_per_second, measured.deviation), (2.0, 1.0));
        assert_eq!(measured.test, "tg8 x 2");
        let cost = measured.decode.unwrap();
        assert_eq!(
            (cost.enqueue_microseconds, cost.launches, cost.graphs),
            (2.5, 5.0, 0.75)
        );
        let on_the_host = Measured::new(
            test,
            vec![4.0],
            DecodeFigures::default(),
            DraftFigures::default(),
        );
        assert!(on_the_host.drafts.is_none());
        assert!(on_the_host.deviation == 0.0 && on_the_host.decode.is_none());
    }
}
