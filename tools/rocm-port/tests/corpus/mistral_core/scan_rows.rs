//! Launches of ssm.cu.

use super::reference::{scan, Scan, ScanInputs};
use crate::data::{Data, Type::F32};
use crate::random::Random;
use crate::rows::{Output, Row};

/// All widths of states; one that is smaller than a warp is not told from its neighbours.
pub fn all(random: &mut Random) -> Vec<Row> {
    let mut rows: Vec<Row> = [(1, 32), (2, 64), (4, 128), (8, 256)]
        .iter()
        .map(|&(items, state)| launch(items, state, random))
        .collect();
    rows.push(launch(1, 16, random).known(
        "d_state of 16 is launched as if it were 32: lanes 16 to 31 read and write the state of the next head",
    ));
    rows
}

fn launch(items: usize, state: usize, random: &mut Random) -> Row {
    let s = Scan {
        batch: 2,
        steps: 5,
        heads: 3,
        width: 2,
        state,
        dt_min: F32.rounded(0.01),
        dt_max: 1.5,
    };
    let rows = s.batch * s.steps * s.heads;
    let mut draw = |count, from, to| Data::random(F32, count, from, to, random);
    let x = draw(rows * s.width, -1., 1.);
    let dt = draw(rows, -6., 3.);
    let a = draw(s.heads, -2., -0.1);
    let b = draw(rows * state, -1., 1.);
    let c = draw(rows * state, -1., 1.);
    let d = draw(s.heads, -1., 1.);
    let bias = draw(s.heads, -1., 1.);
    let before = draw(s.batch * s.heads * s.width * state, -1., 1.);
    let values = [&x, &dt, &a, &b, &c, &d, &bias].map(Data::values);
    let inputs = ScanInputs {
        x: &values[0],
        dt: &values[1],
        a: &values[2],
        b: &values[3],
        c: &values[4],
        d: &values[5],
        bias: &values[6],
    };
    let (out, after) = scan(s, &inputs, &before.values());
    let row = Row::new("ssm_scan_kernel")
        .template(&[&items.to_string()])
        .grid([s.heads * s.width, s.batch, 1])
        .block([32, 1, 1]);
    let row = [&x, &dt, &a, &b, &c, &d, &bias]
        .into_iter()
        .fold(row, Row::input);
    row.output(Output::exact(F32, after).within(2e-6, 2e-6).over(before))
        .output(Output::exact(F32, out).within(2e-5, 2e-6))
        .ints(&[s.heads, s.width, state, s.steps])
        .scalar(F32, s.dt_min)
        .scalar(F32, s.dt_max)
        .about(format!("a state of {state}"))
}
