//! Ranks in processes of their own, which get the id on their standard input.

use crate::common::*;
use crate::setup::*;
use hip_sim::rccl::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

const REMOTE_ERROR: ncclResult_t = 6;

/// A rank in another process: what it prints, line by line.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(id: ncclUniqueId, rank: usize, size: usize, work: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "processes::is_a_rank",
                "--include-ignored",
                "--nocapture",
            ])
            .env("HIP_SIM_TEST_RANK", format!("{rank} {size} {work}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&id.internal).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, lines }
    }

    /// The rank's next answer.
    fn answer(&mut self) -> String {
        let mut answers = self.lines.by_ref().map_while(Result::ok);
        let answer =
            answers.find_map(|line| line.split_once("rank says ").map(|(_, a)| a.to_string()));
        answer.unwrap_or_else(|| "nothing".into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "helper process of the tests below"]
fn is_a_rank() {
    let Ok(task) = std::env::var("HIP_SIM_TEST_RANK") else {
        return;
    };
    let _turn = setup();
    let words: Vec<&str> = task.split(' ').collect();
    let (rank, size) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let mut id = ncclUniqueId { internal: [0; 128] };
    std::io::stdin().read_exact(&mut id.internal).unwrap();
    let rank = match Rank::init(id, rank, size) {
        Ok(rank) => rank,
        Err(status) => return println!("rank says init {status}"),
    };
    match words[2] {
        "sums" => println!("rank says {:?}", sums(&rank)),
        "mismatch" => {
            let x = Buffer::from_slice(&[0f32; 4]);
            println!(
                "rank says {} {}",
                rank.all_reduce(&x, &x, 4, FLOAT32, SUM),
                take_reports().len()
            );
        }
        _ => {
            println!("rank says {:?}", rank.sum(1.0));
            if words[2] == "idle" {
                loop {
                    std::thread::park();
                }
            }
            // The other process ends this one, or itself: the call fails, or is never over.
            println!("rank says {:?} {}", rank.sum(1.0), rank.async_error());
            return;
        }
    }
    rank.destroy();
}

/// Collectives and messages, and a megabyte.
fn sums(rank: &Rank) -> Vec<f32> {
    let n = 1 << 18;
    let big = Buffer::from_slice(&vec![rank.rank as f32 + 1.0; n]);
    assert_eq!(rank.all_reduce(&big, &big, n, FLOAT32, SUM), 0);
    let (ours, theirs) = (Buffer::from_slice(&numbers(rank.rank, 2)), Buffer::new(8));
    assert_eq!(ncclGroupStart(), 0);
    assert_eq!(rank.send(&ours, 2, (rank.rank + 1) % 3), 0);
    assert_eq!(rank.recv(&theirs, 2, (rank.rank + 2) % 3), 0);
    assert_eq!(ncclGroupEnd(), 0);
    let (last, received) = (big.to_vec::<f32>()[n - 1], theirs.to_vec::<f32>());
    assert_eq!(rank.async_error(), 0);
    vec![last, received[0], received[1], rank.sum(0.5).unwrap()]
}

#[test]
fn ranks_of_several_processes_meet() {
    let _turn = setup();
    let id = unique_id();
    let mut others = [1, 2].map(|rank| Process::start(id, rank, 3, "sums"));
    let rank = Rank::init(id, 0, 3).unwrap();
    assert_eq!(sums(&rank), [6.0, 2.0, 12.0, 1.5]);
    rank.destroy();
    assert_eq!(others[0].answer(), "[6.0, 0.0, 10.0, 1.5]");
    assert_eq!(others[1].answer(), "[6.0, 1.0, 11.0, 1.5]");
    assert!(others
        .iter_mut()
        .all(|other| other.child.wait().unwrap().success()));
    assert_eq!(take_reports(), Vec::<String>::new());
}

#[test]
fn a_process_that_is_killed_fails_the_others() {
    let _turn = setup();
    let id = unique_id();
    let works = [(1, "wait"), (2, "idle")];
    let mut others = works.map(|(rank, work)| Process::start(id, rank, 3, work));
    let rank = Rank::init(id, 0, 3).unwrap();
    assert_eq!(rank.sum(1.0), Ok(3.0));
    assert!(others.iter_mut().all(|other| other.answer() == "Ok(3.0)"));
    others[1].child.kill().unwrap();
    assert_eq!(rank.sum(1.0), Err(REMOTE_ERROR));
    assert_eq!(rank.async_error(), REMOTE_ERROR);
    assert_eq!(others[0].answer(), "Err(6) 6");
}

#[test]
fn the_end_of_the_process_that_made_the_id_fails_the_others() {
    let _turn = setup();
    let id = unique_id();
    let mut other = Process::start(id, 1, 2, "wait");
    let rank = Rank::init(id, 0, 2).unwrap();
    assert_eq!(rank.sum(1.0), Ok(2.0));
    assert_eq!(other.answer(), "Ok(2.0)");
    // As far as the other one can see, this process is gone when its communicator is.
    assert_eq!(ncclCommAbort(rank.comm), 0);
    assert_eq!(other.answer(), "Err(6) 6");
}

#[test]
fn a_call_that_does_not_fit_is_told_in_every_process() {
    let _turn = setup();
    let id = unique_id();
    let mut other = Process::start(id, 1, 2, "mismatch");
    let rank = Rank::init(id, 0, 2).unwrap();
    assert_eq!(rank.sum(1.0), Err(5));
    assert_eq!(other.answer(), "5 1");
    assert!(take_reports()[0].contains("ncclAllReduce of 4 Float32, Sum"));
}
