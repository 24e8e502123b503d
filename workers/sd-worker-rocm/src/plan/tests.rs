use super::*;
use crate::pipeline::PartBytes;
use DeviceRequest::{Cpu, Rocm};

const G: u64 = 1 << 30;

/// A model of 2 + 12 + 1 GiB.
const SIZES: PartSizes = PartSizes {
    gpu: PartBytes {
        text: 2 * G,
        denoiser: 12 * G,
        vae: G,
    },
    cpu: PartBytes {
        text: 4 * G,
        denoiser: 24 * G,
        vae: G,
    },
    evaluates_twice: true,
};

/// Cards of so many GiB, all of them free, of these kinds.
fn cards(of: &[(u64, &str)]) -> Vec<Card> {
    let card = |(number, (gib, kind)): (usize, &(u64, &str))| Card {
        request: if *kind == "cpu" { Cpu } else { Rocm(number) },
        name: format!("card {number}"),
        kind: kind.to_string(),
        room: Some(Room {
            free: gib * G,
            total: gib * G,
        }),
    };
    of.iter().enumerate().map(card).collect()
}

fn chosen(of: &[(u64, &str)], wishes: &Wishes) -> Plan {
    plan(&cards(of), wishes, || Ok(SIZES)).unwrap()
}

#[test]
fn cards_that_hold_all_share_the_work() {
    let wishes = Wishes::default();
    let both = chosen(&[(24, "a"), (24, "a")], &wishes);
    assert_eq!(
        both.models,
        [PartCards::all_on(0), PartCards::all_on(1)],
        "{}",
        both.reason
    );
    assert!(both.together);
    // Of two kinds: the numbers of halves would be those of two kinds.
    let mixed = chosen(&[(24, "a"), (24, "b")], &wishes);
    assert_eq!((mixed.models.len(), mixed.together), (2, false));
    assert!(chosen(&[(24, "a"), (24, "b"), (24, "a")], &wishes).together);
    let off = Wishes {
        guidance: Some(GuidanceDevices::Off),
        ..Wishes::default()
    };
    assert!(!chosen(&[(24, "a"), (24, "a")], &off).together);
    // One that does not hold it is left out, and it is said so.
    let uneven = chosen(&[(8, "b"), (24, "a")], &wishes);
    assert_eq!(uneven.models, [PartCards::all_on(1)]);
    assert!(
        uneven.reason.contains("card 0 left out"),
        "{}",
        uneven.reason
    );
    // What is not known is tried.
    let mut unknown = cards(&[(1, "a"), (1, "a")]);
    unknown.iter_mut().for_each(|card| card.room = None);
    assert_eq!(
        plan(&unknown, &wishes, || Ok(SIZES)).unwrap().models.len(),
        2
    );
    // Two names of one host's memory; a third of it is not enough for 29 GiB.
    assert_eq!(chosen(&[(72, "cpu"), (72, "cpu")], &wishes).models.len(), 2);
    assert_eq!(chosen(&[(60, "cpu"), (60, "cpu")], &wishes).models.len(), 1);
    let one = chosen(&[(1, "a")], &wishes);
    assert_eq!(one.models, [PartCards::all_on(0)]);
}

#[test]
fn parts_go_where_there_is_room() {
    let wishes = Wishes::default();
    let parts = |of: &[(u64, &str)]| {
        let plan = chosen(of, &wishes);
        assert_eq!(plan.models.len(), 1, "{}", plan.reason);
        plan.models[0]
    };
    let two = PartCards {
        text: 1,
        denoiser: 0,
        vae: 1,
        controlnet: 0,
        halves: Halves::Together,
    };
    // 14 of 16 GiB are for weights: the denoiser's card has 2 left, the other 12 behind the text encoders.
    assert_eq!(parts(&[(16, "a"), (16, "b")]), two);
    assert_eq!(parts(&[(8, "b"), (16, "a")]).denoiser, 1);
    // A second denoiser beside the rest, as far as there is room for it.
    assert_eq!(parts(&[(16, "a"), (16, "a")]).halves, Halves::Together);
    assert_eq!(
        parts(&[(16, "a"), (16, "a"), (16, "a")]).halves,
        Halves::Second(2)
    );
    assert_eq!(
        parts(&[(16, "a"), (16, "b"), (16, "b")]).halves,
        Halves::Together
    );
    // The host is no place for a denoiser where there is a GPU, whatever room it has.
    assert_eq!(
        parts(&[(16, "a"), (64, "cpu")]),
        PartCards { text: 0, ..two }
    );
    // With offloading the largest part must fit.
    let offload = Wishes {
        offload: true,
        ..Wishes::default()
    };
    assert_eq!(chosen(&[(16, "a"), (16, "a")], &offload).models.len(), 2);
}

#[test]
fn wishes_come_first() {
    let wished = |parts: &str, guidance: Option<&str>| {
        let wishes = Wishes {
            parts: match parts {
                "" => PartDevices::default(),
                parts => parts.parse().unwrap(),
            },
            guidance: guidance.map(|text| text.parse().unwrap()),
            offload: false,
        };
        plan(&cards(&[(99, "a"), (99, "a"), (99, "a")]), &wishes, || {
            Ok(SIZES)
        })
        .map(|plan| plan.models[0])
    };
    let model = |text, denoiser, vae, controlnet, halves| PartCards {
        text,
        denoiser,
        vae,
        controlnet,
        halves,
    };
    for (parts, guidance, expected) in [
        (
            "text=1,vae=1,denoiser=0",
            None,
            model(1, 0, 1, 0, Halves::Together),
        ),
        // The denoiser goes where nothing else is.
        ("text=0,vae=1", None, model(0, 2, 1, 2, Halves::Together)),
        (
            "controlnet=2,denoiser=1",
            None,
            model(1, 1, 1, 2, Halves::Together),
        ),
        ("", Some("1,2"), model(1, 1, 1, 1, Halves::Second(2))),
        (
            "text=2",
            Some("rocm:0,rocm:1"),
            model(2, 0, 0, 0, Halves::Second(1)),
        ),
        ("", Some("1"), model(1, 1, 1, 1, Halves::InTurn)),
    ] {
        assert_eq!(
            wished(parts, guidance).unwrap(),
            expected,
            "{parts} {guidance:?}"
        );
    }
    for (parts, guidance, words) in [
        ("text=7", None, "rocm:7 is not among"),
        ("denoiser=2", Some("0,1"), "two devices for the denoiser"),
    ] {
        let error = wished(parts, guidance).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(words), "{error}");
    }
    for (text, words) in [
        ("unet=1", "text, denoiser, vae, controlnet"),
        ("text", "text=1"),
        ("text=0,text=1", "two devices"),
        ("text=0-1", "one device"),
        ("text=x", "names no device"),
    ] {
        let error = text.parse::<PartDevices>().unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
    for text in ["all", "0,1,2", "x", ""] {
        assert!(text.parse::<GuidanceDevices>().is_err(), "{text}");
    }
    let two: GuidanceDevices = "cpu,cpu".parse().unwrap();
    assert_eq!(two, GuidanceDevices::Two([Cpu, Cpu]));
    let wishes = Wishes {
        parts: "text=2,vae=1".parse().unwrap(),
        guidance: Some("0,1".parse().unwrap()),
        offload: false,
    };
    assert_eq!(wishes.devices(), [Rocm(0), Rocm(1), Rocm(2)]);
}
