//! What a launch's outcome says of a kernel.

use super::case::Role;
use super::fill::Fill;
use super::finding::Kind;
use super::prepare::{Prepared, Ready};
use super::session::Ran;
use super::tolerance::{compare, Difference, Expected, Tolerance};
use std::collections::BTreeSet;

/// Something that is wrong with one launch, or between two.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub kind: Kind,
    pub message: String,
    pub difference: Option<Difference>,
}

/// Contents of all buffers after a launch.
pub(super) type Outputs = Vec<Vec<u8>>;

fn fault(kind: Kind, message: String) -> Fault {
    Fault {
        kind,
        message,
        difference: None,
    }
}

fn differs(kind: Kind, difference: Difference, than: &str) -> Fault {
    let Difference {
        buffer,
        element,
        got,
        want,
        count,
        of,
    } = &difference;
    let message =
        format!("{buffer}[{element}] is {got}, {than} {want} ({count} of {of} elements differ)");
    Fault {
        kind,
        message,
        difference: Some(difference),
    }
}

/// The outputs of a launch that went well, as far as it alone tells, or what is wrong with it.
pub(super) fn judge(ready: &Ready, ran: Ran) -> Result<Outputs, Vec<Fault>> {
    let (error, reports, outputs) = match ran {
        Ran::Died { hangs: true, words } => return Err(vec![fault(Kind::Hang, words)]),
        Ran::Died { words, .. } => return Err(vec![fault(Kind::Crash, words)]),
        Ran::Done {
            error,
            reports,
            outputs,
        } => (error, reports, outputs),
    };
    if !reports.is_empty() {
        return Err(of_reports(&reports));
    }
    if let Some(error) = error {
        let kind = match Kind::of_report(&error) {
            Kind::Simulator => Kind::Launch,
            kind => kind,
        };
        return Err(vec![fault(kind, error)]);
    }
    let mut faults = Vec::new();
    for (buffer, after) in ready.buffers.iter().zip(&outputs) {
        faults.extend(changed(buffer, after));
        let wanted = ready.outcome.expected.get(buffer.name);
        let difference = wanted.and_then(|wanted| {
            let spec = buffer.spec;
            let ignored = ready.outcome.ignored.get(buffer.name).unwrap_or(&NONE);
            let (tolerance, any) = (spec.tolerance, spec.any_order);
            compare(
                buffer.name,
                spec.dtype,
                after,
                wanted,
                tolerance,
                any,
                ignored,
            )
        });
        faults.extend(difference.map(|found| differs(Kind::Reference, found, "should be")));
    }
    match faults.is_empty() {
        true => Ok(outputs),
        false => Err(faults),
    }
}

static NONE: BTreeSet<usize> = BTreeSet::new();

/// The first report of each kind, with the number of those like it.
fn of_reports(reports: &[String]) -> Vec<Fault> {
    let mut faults: Vec<(Fault, usize)> = Vec::new();
    for report in reports {
        let kind = Kind::of_report(report);
        match faults.iter_mut().find(|(fault, _)| fault.kind == kind) {
            Some((_, more)) => *more += 1,
            None => faults.push((fault(kind, report.clone()), 0)),
        }
    }
    let worded = faults.into_iter().map(|(mut fault, more)| {
        if more > 0 {
            fault.message += &format!("\nand {more} more reports like this");
        }
        fault
    });
    worded.collect()
}

/// What must stay as it was, and did not.
fn changed(buffer: &Prepared, after: &[u8]) -> Option<Fault> {
    let size = buffer.spec.dtype.size();
    if matches!(buffer.spec.fill, Fill::Addresses(_)) {
        return None;
    }
    let ranges = match buffer.spec.role {
        Role::In => vec![(0, buffer.length)],
        _ => buffer.keep.clone(),
    };
    let elements = ranges.into_iter().flat_map(|(from, to)| from..to);
    let wrong: Vec<usize> = elements
        .filter(|at| {
            let range = at * size..(at + 1) * size;
            after.get(range.clone()) != buffer.before.get(range)
        })
        .collect();
    let element = *wrong.first()?;
    let dtype = buffer.spec.dtype;
    let text = |bytes: &[u8]| match bytes.get(element * size..) {
        Some(bytes) if bytes.len() >= size => dtype.decode(bytes).to_string(),
        _ => "nothing".to_string(),
    };
    let difference = Difference {
        buffer: buffer.name.to_string(),
        element,
        got: text(after),
        want: text(&buffer.before),
        count: wrong.len(),
        of: buffer.length,
    };
    Some(differs(Kind::Changed, difference, "must stay"))
}

/// What differs between two launches on the same input. Between orders of threads nothing may, unless the case has
/// atomic sums; between widths of waves sums may be rounded differently.
pub(super) fn judge_pair(
    ready: &Ready,
    kind: Kind,
    outputs: &Outputs,
    others: &Outputs,
) -> Option<Fault> {
    let all = ready.buffers.iter().zip(outputs.iter().zip(others));
    let difference = all.filter_map(|(buffer, (got, want))| {
        let spec = buffer.spec;
        if matches!(spec.fill, Fill::Addresses(_)) || got == want {
            return None;
        }
        // With a reference, both were compared with that.
        if kind == Kind::Width && ready.outcome.expected.contains_key(buffer.name) {
            return None;
        }
        let tolerance = match kind == Kind::Order && !ready.case.is_atomic {
            true => Tolerance::EXACT,
            false => spec.tolerance.twice(),
        };
        let ignored = ready.outcome.ignored.get(buffer.name).unwrap_or(&NONE);
        let want = Expected::Bytes(want.clone());
        compare(
            buffer.name,
            spec.dtype,
            got,
            &want,
            tolerance,
            spec.any_order,
            ignored,
        )
    });
    let than = match kind {
        Kind::Width => "with the other width",
        Kind::Golden => "recorded is",
        _ => "in another order",
    };
    difference
        .into_iter()
        .next()
        .map(|found| differs(kind, found, than))
}
