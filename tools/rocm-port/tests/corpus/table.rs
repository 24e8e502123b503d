//! The table of the docs: a row for each file, written with `WRITE=1` and compared otherwise.

use crate::run::Outcome;
use std::path::PathBuf;
use std::sync::Mutex;

/// Columns behind the file's name.
const COLUMNS: [&str; 9] = [
    "Kernels",
    "Portable",
    "With edits",
    "Mapped",
    "By hand",
    "Right",
    "Faulty",
    "Never launched",
    "Instances",
];

/// Tests of one process write one after the other.
static DOCS: Mutex<()> = Mutex::new(());

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/rocm-port/corpus.md")
}

/// The crate's section: from its heading to the next.
fn section(text: &str, package: &str) -> Option<std::ops::Range<usize>> {
    let heading = format!("## {}\n", package.replace('@', " "));
    let start = text.find(&heading)?;
    let end = text[start + 3..].find("\n## ").map(|at| start + 3 + at + 1);
    Some(start..end.unwrap_or(text.len()))
}

/// The numbers of a row.
fn numbers(line: &str) -> Option<[usize; COLUMNS.len()]> {
    let cells = line.strip_prefix("| `")?.split('|').skip(1);
    let numbers: Vec<usize> = cells.map_while(|cell| cell.trim().parse().ok()).collect();
    numbers.try_into().ok()
}

/// The sum of all rows of a section.
fn sum(section: &str) -> [usize; COLUMNS.len()] {
    let rows = section.lines().filter_map(numbers);
    rows.fold([0; COLUMNS.len()], |mut sum, row| {
        sum.iter_mut()
            .zip(row)
            .for_each(|(sum, number)| *sum += number);
        sum
    })
}

fn row(name: &str, numbers: [usize; COLUMNS.len()]) -> String {
    format!(
        "| {name} | {} |",
        numbers.map(|n| n.to_string()).join(" | ")
    )
}

/// Compares a file's row and its faults with the docs, or writes them.
pub fn record(package: &str, outcome: &Outcome) {
    let _one = DOCS.lock().unwrap_or_else(|error| error.into_inner());
    let text = std::fs::read_to_string(docs()).expect("docs/rocm-port/corpus.md is there");
    let name = format!("`{}`", outcome.path);
    let line = row(&name, outcome.numbers());
    let faults: Vec<String> = outcome
        .known
        .iter()
        .map(|fault| format!("- {name}: {fault}."))
        .collect();
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(docs(), written(&text, package, &name, &line, &faults))
            .expect("the docs can be written");
        return;
    }
    let range = section(&text, package)
        .unwrap_or_else(|| panic!("docs: no section for {package}; WRITE=1 writes it"));
    let section = &text[range];
    for wanted in faults.iter().chain([&line]) {
        assert!(
            section.lines().any(|line| line == wanted),
            "docs: no line {wanted:?}; WRITE=1 writes it"
        );
    }
    let all = row("**all**", sum(section));
    assert!(
        section.lines().any(|line| line == all),
        "docs: the sum is {all:?}"
    );
}

/// The text with a file's row and faults, and the crate's sum.
fn written(text: &str, package: &str, name: &str, line: &str, faults: &[String]) -> String {
    let (before, old, after) = match section(text, package) {
        Some(range) => (
            &text[..range.start],
            &text[range.clone()],
            &text[range.end..],
        ),
        None => (text, "", ""),
    };
    let of_file = |line: &&str| {
        line.starts_with(&format!("| {name} ")) || line.starts_with(&format!("- {name}: "))
    };
    let rest: Vec<&str> = old.lines().filter(|line| !of_file(line)).collect();
    let mut rows: Vec<&str> = rest
        .iter()
        .copied()
        .filter(|line| numbers(line).is_some())
        .collect();
    rows.push(line);
    rows.sort_unstable();
    let mut known: Vec<&str> = rest
        .iter()
        .copied()
        .filter(|line| line.starts_with("- `"))
        .collect();
    known.extend(faults.iter().map(String::as_str));
    known.sort_unstable();
    let rule = COLUMNS.map(|_| "--:").join("|");
    let mut section = format!(
        "## {}\n\n| File | {} |\n|---|{rule}|\n",
        package.replace('@', " "),
        COLUMNS.join(" | ")
    );
    section.push_str(&rows.join("\n"));
    let all = row("**all**", sum(&section));
    section.push_str(&format!("\n{all}\n"));
    if !known.is_empty() {
        section.push_str(&format!(
            "\nFaults of the kernels' own text, found by the launches that show them:\n\n{}\n",
            known.join("\n")
        ));
    }
    if !after.is_empty() {
        section.push('\n');
    }
    let gap = if before.ends_with("\n\n") { "" } else { "\n" };
    format!("{before}{gap}{section}{after}")
}

/// Of every crate, nine in ten kernels that no matrix instructions of NVIDIA's stand in go over without a hand.
#[test]
fn nine_in_ten_go_over() {
    let text = std::fs::read_to_string(docs()).expect("docs/rocm-port/corpus.md is there");
    let packages = text
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .filter(|line| line.contains('.'));
    let mut count = 0;
    for package in packages {
        let package = package.replace(' ', "@");
        let [kernels, portable, edited, mapped, ..] =
            sum(&text[section(&text, &package).expect("a section")]);
        if kernels > 0 {
            count += 1;
            assert!(
                (portable + edited) * 10 >= (kernels - mapped) * 9,
                "{package}: {portable} and {edited} of {kernels}"
            );
        }
    }
    assert!(count >= 3, "docs: {count} crates");
}
