//! Processes that find each other: nodes are threads here, which know nothing of each other but the address.

mod common;

use candle_rocm_collective::rendezvous::Rendezvous;
use candle_rocm_collective::{Error, Lifeline};
use common::{free_port, nodes, place};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn nodes_read_each_others_cards_and_exchange_messages() {
    for (node, result) in nodes::<_, Error>(4, |mut meeting| {
        assert_eq!(meeting.cards().len(), 4);
        for (node, card) in meeting.cards().iter().enumerate() {
            assert_eq!(card, format!("card {node}").as_bytes());
        }
        let all = meeting.all_gather(&[meeting.node() as u8])?;
        assert_eq!(all, [[0], [1], [2], [3]]);
        let said = meeting.broadcast(&vec![meeting.node() as u8 + 7; 100_000])?;
        assert_eq!(said, vec![7; 100_000]);
        let mut star = meeting.star()?;
        for connection in &mut star {
            connection.send(&[meeting.node() as u8])?;
        }
        let heard = star.iter_mut().map(|connection| connection.receive(None));
        heard.collect::<Result<Vec<_>, _>>()
    })
    .into_iter()
    .enumerate()
    {
        match node {
            0 => assert_eq!(result, Ok(vec![vec![1], vec![2], vec![3]])),
            _ => assert_eq!(result, Ok(vec![vec![0]])),
        }
    }
}

#[test]
fn strangers_are_sent_away_and_told_why() {
    let port = free_port();
    let (told, heard) = mpsc::channel();
    std::thread::scope(|scope| {
        let leader = scope
            .spawn(move || place(port, 0, 2).meet_telling(&[], |line| told.send(line).unwrap()));
        // Before node 0 listens the connection is refused, so that strangers try again as nodes do.
        let mut scanner = loop {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                break stream;
            }
            std::thread::yield_now();
        };
        scanner
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        // The connection ends; nothing is said to who speaks something else.
        let mut answer = Vec::new();
        let _ = scanner.read_to_end(&mut answer);
        assert!(answer.is_empty());

        let with_token = Rendezvous {
            token: "of another test".to_string(),
            ..place(port, 1, 2)
        };
        let error = with_token
            .meet_telling(&[], |_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("token"), "{error}");
        let error = place(port, 1, 3).meet_telling(&[], |_| ()).unwrap_err();
        assert!(error.to_string().contains("one of 3 nodes"), "{error}");

        let other = place(port, 1, 2).meet_telling(&[], |_| ()).unwrap();
        assert_eq!(other.nodes(), 2);
        assert!(leader.join().unwrap().is_ok());
    });
    let lines: Vec<String> = heard.iter().collect();
    for reason in ["does not speak", "closed", "one of 3 nodes"] {
        assert!(
            lines.iter().any(|line| line.contains(reason)),
            "{reason}: {lines:?}"
        );
    }
}

#[test]
fn who_is_missing_is_named() {
    let port = free_port();
    let within = |node, seconds| Rendezvous {
        timeout: Duration::from_secs(seconds),
        ..place(port, node, 3)
    };
    std::thread::scope(|scope| {
        let leader = scope.spawn(move || within(0, 1).meet_telling(&[], |_| ()));
        // Who has come is told as well; one that came too late did not reach node 0.
        let error = within(1, 3).meet_telling(&[], |_| ()).unwrap_err();
        assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
        let error = leader.join().unwrap().unwrap_err().to_string();
        assert!(
            error.contains("have not come") && error.contains('2'),
            "{error}"
        );
    });
}

#[test]
fn a_node_without_a_first_one_gives_up_in_time() {
    let alone = Rendezvous {
        timeout: Duration::from_millis(300),
        ..place(free_port(), 1, 2)
    };
    let error = alone.meet_telling(&[], |_| ()).unwrap_err().to_string();
    assert!(error.contains("did not reach node 0"), "{error}");
}

#[test]
fn what_cannot_be_a_place_is_refused() {
    for (rendezvous, named) in [
        (place(1, 2, 2), "no node 2"),
        (place(1, 0, 0), "no node 0"),
        (
            Rendezvous {
                token: String::new(),
                ..place(1, 0, 2)
            },
            "token",
        ),
        (
            Rendezvous {
                address: "here".to_string(),
                ..place(1, 0, 2)
            },
            "no port",
        ),
        (
            Rendezvous {
                address: "localhost:70000".to_string(),
                ..place(1, 0, 2)
            },
            "70000 is no port",
        ),
    ] {
        let error = rendezvous
            .meet_telling(&[], |_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains(named), "{error}");
    }
    let error = place(1, 0, 2)
        .meet_telling(&[0; 1 << 20], |_| ())
        .unwrap_err();
    assert!(error.to_string().contains("card"), "{error}");
}

#[test]
fn one_that_was_started_anew_takes_its_place() {
    let port = free_port();
    std::thread::scope(|scope| {
        let leader = scope.spawn(move || place(port, 0, 3).meet_telling(&[], |_| ()));
        let again = Rendezvous {
            timeout: Duration::from_millis(200),
            ..place(port, 1, 3)
        };
        // It comes, and gives up before node 2 is there: its connection is closed.
        assert!(again.meet_telling(&[], |_| ()).is_err());
        let second = scope.spawn(move || place(port, 1, 3).meet_telling(b"anew", |_| ()));
        let third = place(port, 2, 3).meet_telling(&[], |_| ()).unwrap();
        assert_eq!(third.cards()[1], b"anew");
        assert!(second.join().unwrap().is_ok());
        assert!(leader.join().unwrap().is_ok());
    });
}

#[test]
fn a_failure_reaches_every_node() {
    let results = nodes::<_, Error>(3, |mut meeting| {
        let lifeline = Lifeline::new(&mut meeting, &[2, 1, 1])?;
        let (tell, heard) = mpsc::channel();
        lifeline.on_failure(move |failure| tell.send(failure.clone()).unwrap());
        if meeting.node() == 2 {
            lifeline.fail(3, "its GPU is lost");
        }
        let failure = heard.recv().unwrap();
        assert_eq!(lifeline.failure(), Some(failure.clone()));
        // Nobody leaves before all have heard of it.
        meeting.all_gather(&[])?;
        Ok(failure)
    });
    let failed = Error::RankFailed {
        rank: 3,
        size: 4,
        reason: "its GPU is lost".to_string(),
    };
    assert_eq!(
        results,
        vec![Ok(failed.clone()), Ok(failed.clone()), Ok(failed)]
    );
}
