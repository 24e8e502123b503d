use super::*;

const GIB: u64 = 1 << 30;

fn card(at: usize, arch: &str, room: f64, bandwidth: f64) -> Card {
    Card {
        name: format!("rocm:{at}"),
        description: format!("card of {arch}"),
        arch: arch.to_string(),
        room: (room * GIB as f64) as u64,
        bandwidth: bandwidth * 1e9,
    }
}

/// So many equal cards, with room for so many GiB.
fn cards(count: usize, room: f64) -> Vec<Card> {
    (0..count)
        .map(|at| card(at, "gfx942", room, 5300.0))
        .collect()
}

/// A model of so many GiB in blocks, with ends of a tenth of a block, and 64 KiB for a token in all.
fn model(blocks: usize, size: f64) -> Demand {
    let block = (size * GIB as f64 / (blocks as f64 + 0.2)) as u64;
    Demand {
        blocks: vec![block; blocks],
        active: vec![block as f64; blocks],
        kv: vec![65536.0 / blocks as f64; blocks],
        first: block / 10,
        last: block / 10,
        each: 0,
        cuts: (1..blocks).collect(),
        experts: 0,
    }
}

/// All weights divide.
fn divides(demand: &Demand) -> impl Fn(&[f32]) -> Result<ShardSizes, String> {
    let (weights, kv) = (demand.weights(), demand.kv.iter().sum::<f64>());
    move |shares| {
        let all: f32 = shares.iter().sum();
        let shard = |share: &f32| {
            let part = f64::from(share / all);
            ShardSize {
                weights: (weights as f64 * part) as u64,
                kv: kv * part,
            }
        };
        Ok(ShardSizes {
            shards: shares.iter().map(shard).collect(),
            whole: Vec::new(),
        })
    }
}

fn nothing_divides(_: &[f32]) -> Result<ShardSizes, String> {
    Err("3 heads cannot be divided by 2".to_string())
}

const JOINED: Joints = Joints {
    apart: None,
    rccl: false,
};

fn apart(rccl: bool) -> Joints {
    Joints {
        apart: Some("rocm:1 does not reach the memory of rocm:0".to_string()),
        rccl,
    }
}

fn wish(split: Split) -> Wish<'static> {
    Wish {
        split,
        shares: &[],
        tokens: 8192,
        host_experts: false,
        experts_may_stay: false,
    }
}

fn starts(choice: &Choice) -> Vec<usize> {
    choice
        .stages
        .iter()
        .map(|stage| stage.blocks.start)
        .collect()
}

#[test]
fn what_suits_which_cards() {
    let big = model(80, 40.0);
    // Read in 50 microseconds, and divided in far more exchanges.
    let small = model(30, 0.25);
    let mixed = vec![
        card(0, "gfx1100", 22.0, 960.0),
        card(1, "gfx1201", 14.0, 640.0),
    ];
    let joint = |apart: Option<&str>, rccl| Joints {
        apart: apart.map(str::to_string),
        rccl,
    };
    let far = Some("rocm:1 does not reach the memory of rocm:0");
    // Cards, model, what joins them, whether it divides, and what comes of it, for which reason.
    type Case<'a> = (&'a [Card], &'a Demand, Joints, bool, Split, &'a str);
    let cases: [Case; 9] = [
        (
            &cards(1, 170.0),
            &big,
            joint(None, true),
            true,
            Split::None,
            "one GPU",
        ),
        (
            &cards(4, 170.0),
            &big,
            joint(None, false),
            true,
            Split::Tensor,
            "in place of",
        ),
        (
            &cards(4, 30.0),
            &big,
            joint(far, true),
            true,
            Split::Tensor,
            "in place of",
        ),
        (
            &cards(4, 30.0),
            &big,
            joint(far, false),
            true,
            Split::Layers,
            "no RCCL",
        ),
        (
            &cards(4, 30.0),
            &big,
            joint(None, true),
            false,
            Split::Layers,
            "3 heads",
        ),
        (
            &cards(4, 30.0),
            &small,
            joint(None, true),
            true,
            Split::Layers,
            "not be faster",
        ),
        (
            &mixed,
            &model(40, 20.0),
            joint(None, true),
            true,
            Split::Layers,
            "round differently",
        ),
        // A tenth of it fits in the second only by layers.
        (
            &[
                card(0, "gfx1100", 30.0, 960.0),
                card(1, "gfx1100", 8.0, 960.0),
            ],
            &model(40, 30.0),
            joint(None, true),
            true,
            Split::Layers,
            "rocm:1 takes 15.0 GiB",
        ),
        (
            &cards(2, 30.0),
            &big,
            joint(None, true),
            true,
            Split::Tensor,
            "in place of",
        ),
    ];
    for (at, (cards, demand, joints, divides_all, split, why)) in cases.into_iter().enumerate() {
        type Shards<'a> = Box<dyn Fn(&[f32]) -> Result<ShardSizes, String> + 'a>;
        let shards: Shards = match divides_all {
            true => Box::new(divides(demand)),
            false => Box::new(nothing_divides),
        };
        let choice = choose(demand, cards, &joints, &wish(Split::Auto), &*shards).unwrap();
        assert_eq!(choice.split(), split, "case {at}: {choice:?}");
        assert!(choice.why.contains(why), "case {at}: {}", choice.why);
        let blocks = demand.blocks.len();
        assert_eq!(choice.stages.last().unwrap().blocks.end, blocks);
    }
}

#[test]
fn what_is_asked_for_is_done_or_refused_by_name() {
    let demand = model(40, 20.0);
    let two = cards(2, 30.0);
    let ask = |cards: &[Card], joints: &Joints, wish: &Wish| {
        choose(&demand, cards, joints, wish, &divides(&demand))
    };
    let layers = ask(&two, &JOINED, &wish(Split::Layers)).unwrap();
    assert_eq!(
        (layers.split(), starts(&layers)),
        (Split::Layers, vec![0, 20])
    );
    // Through the host's memory, if it is asked for.
    let tensor = ask(&two, &apart(false), &wish(Split::Tensor)).unwrap();
    assert_eq!(tensor.split(), Split::Tensor);
    assert_eq!(tensor.stages[0].cards, [0, 1]);
    // The one with the most room, the first of equal ones.
    let uneven = [
        card(0, "gfx942", 30.0, 1.0),
        card(1, "gfx942", 60.0, 1.0),
        card(2, "gfx942", 60.0, 1.0),
    ];
    let none = ask(&uneven, &JOINED, &wish(Split::None)).unwrap();
    assert_eq!(none.stages[0].cards, [1]);
    let mixed = [card(0, "gfx1100", 30.0, 1.0), card(1, "gfx1201", 30.0, 1.0)];
    let refused = ask(&mixed, &JOINED, &wish(Split::Tensor)).unwrap_err();
    assert!(
        refused.contains("rocm:0 is a gfx1100 and rocm:1 a gfx1201"),
        "{refused}"
    );
    let refused = choose(
        &demand,
        &two,
        &JOINED,
        &wish(Split::Tensor),
        &nothing_divides,
    );
    assert_eq!(
        refused.unwrap_err(),
        "--split tensor: 3 heads cannot be divided by 2"
    );
    let experts = Wish {
        host_experts: true,
        ..wish(Split::Tensor)
    };
    assert!(ask(&two, &JOINED, &experts)
        .unwrap_err()
        .contains("--cpu-moe"));
    let mut few = demand.clone();
    few.cuts = vec![20];
    let refused = choose(
        &few,
        &cards(3, 30.0),
        &JOINED,
        &wish(Split::Layers),
        &nothing_divides,
    );
    assert!(refused.unwrap_err().contains("more than 2 stages"));
}

#[test]
fn shares_decide_before_room() {
    let demand = model(40, 20.0);
    let two = cards(2, 30.0);
    let ask = |split, shares: &[f64]| {
        let wish = Wish {
            shares,
            ..wish(split)
        };
        choose(&demand, &two, &JOINED, &wish, &divides(&demand))
    };
    let layers = ask(Split::Layers, &[3.0, 1.0]).unwrap();
    assert_eq!(starts(&layers), [0, 30]);
    let tensor = ask(Split::Auto, &[0.6, 0.4]).unwrap();
    assert_eq!(tensor.stages[0].shares, [0.6, 0.4]);
    for (shares, why) in [
        (&[1.0][..], "1 numbers for 2 GPUs"),
        (&[1.0, 0.0], "above 0"),
        (&[f64::NAN, 1.0], "above 0"),
    ] {
        let refused = ask(Split::Layers, shares).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    let large = model(40, 40.0);
    let wish = Wish {
        shares: &[9.0, 1.0],
        ..wish(Split::Layers)
    };
    let refused = choose(&large, &two, &JOINED, &wish, &nothing_divides).unwrap_err();
    assert!(
        refused.contains("--shares gives") && refused.contains("rocm:0"),
        "{refused}"
    );
}

#[test]
fn what_does_not_fit_is_said_in_numbers() {
    let mut demand = model(40, 50.0);
    demand.experts = 30 * GIB;
    let refused = choose(
        &demand,
        &cards(2, 20.0),
        &JOINED,
        &wish(Split::Auto),
        &divides(&demand),
    );
    let refused = refused.unwrap_err();
    for part in [
        "its weights take 50.0 GiB",
        "20.0 GiB on rocm:0 (card of gfx942), 20.0 GiB on rocm:1",
        "40.0 GiB in all",
        "--cpu-moe, which keeps the experts (30.0 GiB)",
        "smaller type of weights",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    // Enough in all, and no cut for it.
    let mut lumps = model(3, 30.0);
    lumps.experts = 0;
    let refused = choose(
        &lumps,
        &cards(2, 16.0),
        &JOINED,
        &wish(Split::Layers),
        &nothing_divides,
    );
    let refused = refused.unwrap_err();
    assert!(
        refused.contains("no cut into whole layers fits") && !refused.contains("--cpu-moe"),
        "{refused}"
    );
    // Experts may stay in the host's memory, and the rest fits, or does not.
    let host = Wish {
        experts_may_stay: true,
        ..wish(Split::Auto)
    };
    let choose_host = |cards: &[Card]| choose(&demand, cards, &JOINED, &host, &divides(&demand));
    assert_eq!(choose_host(&cards(2, 20.0)).unwrap().split(), Split::Layers);
    assert!(choose_host(&cards(2, 9.0)).is_err());
}

#[test]
fn room_for_the_cache_counts_as_far_as_it_goes() {
    // Of the first half of the blocks, keys and values take much; of the others none.
    let mut demand = model(40, 8.0);
    demand.kv = (0..40)
        .map(|block| if block < 20 { 65536.0 } else { 0.0 })
        .collect();
    let ask = |tokens| {
        let wish = Wish {
            tokens,
            ..wish(Split::Layers)
        };
        choose(&demand, &cards(2, 8.0), &JOINED, &wish, &nothing_divides).unwrap()
    };
    let few = starts(&ask(512))[1];
    let many = starts(&ask(10_000))[1];
    // More than fits: what fits is divided evenly.
    let too_many = starts(&ask(10_000_000))[1];
    assert!(few > many && too_many <= many, "{few} {many} {too_many}");
}

#[test]
fn what_was_chosen_is_told() {
    let demand = model(40, 20.0);
    let two = cards(2, 30.0);
    let layers = choose(
        &demand,
        &two,
        &JOINED,
        &wish(Split::Layers),
        &nothing_divides,
    )
    .unwrap();
    assert_eq!(
        layers.describe(&two),
        "layers 0-19 on rocm:0 (card of gfx942), 20-39 on rocm:1 (card of gfx942)"
    );
    let mut tensor = choose(
        &demand,
        &two,
        &JOINED,
        &wish(Split::Tensor),
        &divides(&demand),
    )
    .unwrap();
    tensor.whole = vec!["recurrent mixers".to_string()];
    assert_eq!(
        tensor.describe(&two),
        "every layer divided between rocm:0 (card of gfx942), rocm:1 (card of gfx942); whole on each of them: recurrent mixers"
    );
    let one = choose(
        &demand,
        &two[..1],
        &JOINED,
        &wish(Split::Auto),
        &nothing_divides,
    )
    .unwrap();
    assert_eq!(one.describe(&two), "all on rocm:0 (card of gfx942)");
}
