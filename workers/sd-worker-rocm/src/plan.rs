//! Which devices a model's parts go to: what was asked for, and the rules where nothing was.
//!
//! | Named                                  | What is done                                                              |
//! |----------------------------------------|---------------------------------------------------------------------------|
//! | one device                             | all parts are there                                                       |
//! | `--part-device`, `--guidance-devices`  | one model, its parts as named; what is not named is beside the denoiser    |
//! | devices that each hold the whole model | the model on each: pictures and requests are spread over them             |
//! | devices of which none holds it         | one model: the denoiser where most is free, then text encoders and VAE    |
//!
//! The CPU beside GPUs gets only parts that none of them has room for.

mod wishes;

pub use wishes::{GuidanceDevices, Part, PartDevices, Wishes};

use crate::pipeline::PartSizes;
use worker::device::{DeviceRequest, Room};
use worker::{Error, Result};

/// A share of a device's memory, one in so many, is left for what is computed between the weights.
const BETWEEN: u64 = 8;

/// A device as the rules see it.
#[derive(Debug, Clone)]
pub struct Card {
    /// Which it is.
    pub request: DeviceRequest,
    /// Its name, for people.
    pub name: String,
    /// What it is; equal ones compute equal numbers.
    pub kind: String,
    /// Its memory, if that is known.
    pub room: Option<Room>,
}

/// How a model computes the halves of guidance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halves {
    /// In one batch.
    Together,
    /// One after the other.
    InTurn,
    /// The negative prompt's on this card.
    Second(usize),
}

/// The cards of one model's parts, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartCards {
    /// Of the text encoders.
    pub text: usize,
    /// Of the denoiser.
    pub denoiser: usize,
    /// Of the VAE.
    pub vae: usize,
    /// Of ControlNets.
    pub controlnet: usize,
    /// How guidance is computed.
    pub halves: Halves,
}

impl PartCards {
    fn all_on(card: usize) -> Self {
        Self {
            text: card,
            denoiser: card,
            vae: card,
            controlnet: card,
            halves: Halves::Together,
        }
    }

    /// The cards that are used, each once, the denoiser's first.
    pub fn cards(&self) -> Vec<usize> {
        let second = match self.halves {
            Halves::Second(card) => Some(card),
            Halves::Together | Halves::InTurn => None,
        };
        let mut cards = Vec::new();
        let all = [self.denoiser, self.text, self.vae, self.controlnet];
        for card in all.into_iter().chain(second) {
            if !cards.contains(&card) {
                cards.push(card);
            }
        }
        cards
    }

    /// What is on a card, in words.
    pub fn on(&self, card: usize) -> Vec<&'static str> {
        let second = self.halves == Halves::Second(card);
        let parts = [
            (self.text == card, Part::Text.name()),
            (self.denoiser == card, Part::Denoiser.name()),
            (second, "second denoiser"),
            (self.vae == card, Part::Vae.name()),
            (self.controlnet == card, Part::ControlNet.name()),
        ];
        let here = parts.into_iter().filter(|(is_here, _)| *is_here);
        here.map(|(_, name)| name).collect()
    }
}

/// Where everything goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// One or several whole models.
    pub models: Vec<PartCards>,
    /// Whether two of them compute the halves of guidance of one picture, when nothing else is to be done.
    pub together: bool,
    /// What was chosen and why, in a sentence.
    pub reason: String,
}

/// Bytes as people read them.
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// Places a model. How large it is is asked only where the rules need it.
///
/// # Errors
/// [`Error::Usage`] without a card, and for a wish that names a device that is not among `cards`; those of `sizes`.
pub fn plan(
    cards: &[Card],
    wishes: &Wishes,
    sizes: impl FnOnce() -> Result<PartSizes>,
) -> Result<Plan> {
    if wishes.names_devices() {
        return as_wished(cards, wishes);
    }
    match cards {
        [] => Err(Error::Usage("there is no device to compute on".to_string())),
        [only] => Ok(Plan {
            models: vec![PartCards::all_on(0)],
            together: false,
            reason: format!("the whole model on {}", only.name),
        }),
        _ => {
            let sizes = sizes()?;
            let place = Place {
                cards,
                sizes: &sizes,
                offload: wishes.offload,
            };
            let whole: Vec<usize> = place
                .candidates()
                .filter(|card| place.has_room(*card, place.whole(*card)))
                .collect();
            let guided = sizes.evaluates_twice && wishes.guidance != Some(GuidanceDevices::Off);
            Ok(match whole.is_empty() {
                true => place.parts(guided),
                false => place.several(&whole, guided),
            })
        }
    }
}

/// What is to be placed, and where.
struct Place<'a> {
    cards: &'a [Card],
    sizes: &'a PartSizes,
    offload: bool,
}

impl Place<'_> {
    /// Bytes that a card may take of weights; `None` if that is not known. Cards that are one host share its memory.
    fn room(&self, card: usize) -> Option<u64> {
        let card = &self.cards[card];
        let room = card.room?;
        let same = match card.request {
            DeviceRequest::Cpu => {
                let hosts = self.cards.iter();
                hosts
                    .filter(|other| other.request == DeviceRequest::Cpu)
                    .count() as u64
            }
            DeviceRequest::Auto | DeviceRequest::Rocm(_) => 1,
        };
        let between = room.total / BETWEEN;
        Some(room.free.saturating_sub(between) / same)
    }

    /// The GPUs; without any, all.
    fn candidates(&self) -> impl Iterator<Item = usize> + '_ {
        let is_gpu = |card: &Card| card.request != DeviceRequest::Cpu;
        let has_gpus = self.cards.iter().any(is_gpu);
        (0..self.cards.len()).filter(move |card| !has_gpus || is_gpu(&self.cards[*card]))
    }

    fn has_room(&self, card: usize, bytes: u64) -> bool {
        self.room(card).is_none_or(|room| bytes <= room)
    }

    /// Bytes of text encoders, denoiser and VAE on a card.
    fn bytes(&self, card: usize) -> [u64; 3] {
        let bytes = match self.cards[card].request {
            DeviceRequest::Cpu => self.sizes.cpu,
            DeviceRequest::Auto | DeviceRequest::Rocm(_) => self.sizes.gpu,
        };
        [bytes.text, bytes.denoiser, bytes.vae]
    }

    /// Bytes of a whole model on a card.
    fn whole(&self, card: usize) -> u64 {
        let bytes = self.bytes(card).into_iter();
        match self.offload {
            true => bytes.max().unwrap_or(0),
            false => bytes.sum(),
        }
    }

    /// The whole model on each of these cards.
    fn several(&self, whole: &[usize], guided: bool) -> Plan {
        let names = |of: &[usize]| {
            let names: Vec<&str> = of
                .iter()
                .map(|card| self.cards[*card].name.as_str())
                .collect();
            names.join(", ")
        };
        let of_kind = |kind: &str| {
            whole
                .iter()
                .filter(|c| self.cards[**c].kind == kind)
                .count()
        };
        let together = guided && whole.iter().any(|c| of_kind(&self.cards[*c].kind) > 1);
        let size = gib(self.whole(whole[0]));
        let left: Vec<usize> = (0..self.cards.len())
            .filter(|card| !whole.contains(card))
            .collect();
        let mut reason = match whole {
            [only] => format!("the whole model ({size}) on {}", self.cards[*only].name),
            _ => format!("the whole model ({size}) on each of {}: pictures and requests are spread over them", names(whole)),
        };
        if together {
            reason +=
                ", and two of one kind compute the halves of guidance of a picture that is alone";
        }
        if !left.is_empty() {
            reason += &format!(
                "; {} left out, as the model does not fit there",
                names(&left)
            );
        }
        Plan {
            models: whole.iter().map(|card| PartCards::all_on(*card)).collect(),
            together,
            reason,
        }
    }

    /// One model whose parts are on several cards.
    fn parts(&self, guided: bool) -> Plan {
        let mut left: Vec<u64> = (0..self.cards.len())
            .map(|card| self.room(card).unwrap_or(u64::MAX))
            .collect();
        let gpus: Vec<usize> = self.candidates().collect();
        let host = (0..self.cards.len()).find(|card| !gpus.contains(card));
        let mut put = |part: usize| {
            // The first of those with the most room.
            let most = gpus
                .iter()
                .copied()
                .max_by_key(|card| (left[*card], usize::MAX - card));
            let mut card = most.unwrap_or(0);
            if let Some(host) = host.filter(|_| part != 1 && self.bytes(card)[part] > left[card]) {
                card = host;
            }
            left[card] = left[card].saturating_sub(self.bytes(card)[part]);
            card
        };
        let denoiser = put(1);
        let text = put(0);
        let vae = put(2);
        let twin = |card: &usize| {
            *card != denoiser
                && self.cards[*card].kind == self.cards[denoiser].kind
                && self.bytes(*card)[1] <= left[*card]
        };
        let second = (0..self.cards.len())
            .filter(twin)
            .max_by_key(|card| (left[*card], usize::MAX - card));
        let model = PartCards {
            text,
            denoiser,
            vae,
            controlnet: denoiser,
            halves: match second.filter(|_| guided) {
                Some(card) => Halves::Second(card),
                None => Halves::Together,
            },
        };
        let size = gib(self.bytes(denoiser).into_iter().sum());
        Plan {
            reason: format!(
                "the whole model ({size}) fits on no device: {}",
                told(self.cards, &model)
            ),
            models: vec![model],
            together: false,
        }
    }
}

/// A model's parts and their devices, in words.
fn told(cards: &[Card], model: &PartCards) -> String {
    let used = model.cards();
    let of = used.iter().map(|card| {
        let parts = model.on(*card).join(" and ");
        format!("{parts} on {}", cards[*card].name)
    });
    of.collect::<Vec<_>>().join(", ")
}

fn as_wished(cards: &[Card], wishes: &Wishes) -> Result<Plan> {
    // Of the CPU's several names the first that is left.
    let find = |device: DeviceRequest, not: Option<usize>| {
        let mut those = cards.iter().enumerate();
        let found = those.find(|(card, known)| known.request == device && Some(*card) != not);
        found.map(|(card, _)| card).ok_or_else(|| {
            let names: Vec<&str> = cards.iter().map(|card| card.name.as_str()).collect();
            Error::Usage(format!(
                "{device} is not among the devices that are named: {}; name it with --devices, too",
                names.join(", ")
            ))
        })
    };
    let part = |part| {
        wishes
            .part(part)
            .map(|device| find(device, None))
            .transpose()
    };
    let (base, halves) = match &wishes.guidance {
        Some(GuidanceDevices::Two([first, second])) => {
            let first = find(*first, None)?;
            (Some(first), Halves::Second(find(*second, Some(first))?))
        }
        Some(GuidanceDevices::InTurn(one)) => (Some(find(*one, None)?), Halves::InTurn),
        Some(GuidanceDevices::Off) | None => (None, Halves::Together),
    };
    let denoiser = match (part(Part::Denoiser)?, base) {
        (Some(named), Some(first)) if named != first => {
            return Err(Error::Usage(
                "--part-device and --guidance-devices name two devices for the denoiser; its is the first of the latter"
                    .to_string(),
            ))
        }
        (named, first) => named.or(first),
    };
    // Where a part is not named, it is on a device that no named part has, or else beside the denoiser.
    let denoiser = match denoiser {
        Some(denoiser) => denoiser,
        None => {
            let taken: Vec<usize> = [part(Part::Text)?, part(Part::Vae)?]
                .into_iter()
                .flatten()
                .collect();
            let free = (0..cards.len()).find(|card| !taken.contains(card));
            free.unwrap_or(0)
        }
    };
    let model = PartCards {
        text: part(Part::Text)?.unwrap_or(denoiser),
        vae: part(Part::Vae)?.unwrap_or(denoiser),
        controlnet: part(Part::ControlNet)?.unwrap_or(denoiser),
        denoiser,
        halves,
    };
    Ok(Plan {
        reason: format!("as asked for: {}", told(cards, &model)),
        models: vec![model],
        together: false,
    })
}

#[cfg(test)]
mod tests;
