//! What a repair asks of the checks, and how two outcomes are compared.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// How bad a finding is. The order is the one in which outcomes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A compiler refuses the text.
    Compile,
    /// A crash, a hang, an access outside of memory, a read of what was never written.
    Unsafe,
    /// A result differs: from the reference, between widths of waves, orders of threads or runs.
    Wrong,
    /// LDS beyond the arch's limit, spills, launch bounds.
    Resource,
    /// A rule of `scan`.
    Rule,
}

impl Class {
    /// All of them, the worst first.
    pub const ALL: [Class; 5] = [
        Class::Compile,
        Class::Unsafe,
        Class::Wrong,
        Class::Resource,
        Class::Rule,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Class::Compile => "compiler error",
            Class::Unsafe => "unsafe access or hang",
            Class::Wrong => "wrong result",
            Class::Resource => "resource limit",
            Class::Rule => "rule",
        }
    }
}

/// One thing that is wrong with the kernel file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub class: Class,
    /// The rule's id, or the check's name for it.
    pub id: String,
    /// The kernel or function that it is about, if the check knows.
    pub kernel: Option<String>,
    /// Line of the kernel file, from 1.
    pub line: Option<usize>,
    /// What is wrong, in a sentence.
    pub message: String,
    /// More that helps: the smallest failing input, the rule's page.
    pub detail: String,
}

/// What the checks say of one text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// What was compiled and run: names of kernels and cases. An answer must not make it fewer.
    pub checked: BTreeSet<String>,
}

impl Outcome {
    /// Sorts the findings and removes repeated ones.
    pub fn new(mut findings: Vec<Finding>, checked: BTreeSet<String>) -> Self {
        findings.sort_by(|a, b| (a.class, a.line, &a.id).cmp(&(b.class, b.line, &b.id)));
        findings.dedup();
        Self { findings, checked }
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Numbers of findings by class, the worst class first: fewer is better, and a class counts more than all behind it.
    pub fn rank(&self) -> Rank {
        let mut counts = [0; 5];
        for finding in &self.findings {
            counts[finding.class as usize] += 1;
        }
        Rank(counts)
    }
}

/// What outcomes are compared by; the smaller is the better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank(pub [usize; 5]);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = Class::ALL
            .iter()
            .zip(self.0)
            .filter(|(_, count)| *count > 0)
            .map(|(class, count)| match count {
                1 => format!("1 {}", class.name()),
                _ => format!("{count} × {}", class.name()),
            })
            .collect();
        match parts.is_empty() {
            true => f.write_str("no findings"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}

/// Why checks could not be carried out; what they found is an [`Outcome`] instead.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The tests are not those that the repair began with.
    #[error("the tests have changed since the repair began: {0}")]
    Changed(String),
    /// Interrupted by the user.
    #[error("interrupted")]
    Interrupted,
    /// The checks themselves failed.
    #[error("{0}")]
    Failed(String),
}

/// Compiles and runs a kernel file.
pub trait Checker {
    /// Checks a text in the place of the kernel file, on random inputs that `seed` makes.
    ///
    /// # Errors
    /// If the checks could not be carried out at all.
    fn check(&mut self, text: &str, seed: u64) -> Result<Outcome, CheckError>;

    /// A digest of all that says what is right: cases, references, tolerances, options. Asked before every check.
    ///
    /// # Errors
    /// If a file of it cannot be read.
    fn tests(&mut self) -> Result<String, CheckError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worse_class_outweighs_any_number_of_others() {
        let finding = |class| Finding {
            class,
            id: "x".into(),
            kernel: None,
            line: None,
            message: String::new(),
            detail: format!("{class:?}"),
        };
        let one = Outcome::new(vec![finding(Class::Compile)], BTreeSet::new());
        let many = Outcome {
            findings: vec![finding(Class::Wrong); 100],
            checked: BTreeSet::new(),
        };
        assert!(many.rank() < one.rank());
        assert!(Outcome::default().rank() < many.rank());
        assert_eq!(many.rank().to_string(), "100 × wrong result");
        assert_eq!(
            Outcome::new(vec![finding(Class::Rule); 3], BTreeSet::new())
                .findings
                .len(),
            1
        );
    }
}
