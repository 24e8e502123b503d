//! The preprocessors, by name.

use super::library::{Needs, NetworkKind};
use worker::{Error, Result};

/// What is made of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: it is as the ControlNet wants it.
    None,
    /// Its negative.
    Invert,
    /// Edges.
    Canny,
    /// White where all colours are bright.
    Threshold,
    /// Scribbles: where two blurs differ.
    Scribble,
    /// Lines: how much darker a pixel is than its surroundings.
    Lineart,
    /// A coarser picture.
    Tile,
    /// A softer picture.
    Blur,
    /// The brightest of each pixel's colours.
    Intensity,
    /// How bright each pixel looks.
    Luminance,
    /// The pixels in another order.
    Shuffle,
    /// Nothing, but what a mask has is hidden.
    Inpaint,
    /// Soft edges, by a network (HED).
    SoftEdge,
    /// The same in two greys.
    SoftEdgeSafe,
    /// Scribbles of the same.
    ScribbleHed,
    /// Lines, by a network.
    LineartNetwork,
    /// Coarse lines, by a network.
    LineartCoarse,
    /// Lines of anime, by a network.
    LineartAnime,
    /// Straight lines, by a network.
    Mlsd,
    /// Depths, by whatever network there is.
    Depth,
    /// Depths, by DPT.
    DepthMidas,
    /// Depths, by Depth Anything.
    DepthAnything,
    /// Normals of depths.
    Normal,
    /// People's bodies.
    Pose,
}

/// What a threshold is, its usual value, and the least and the most.
pub type Threshold = (&'static str, f64, f64, f64);

/// What there is to say of a kind.
struct Row {
    kind: Kind,
    /// Ours, then AUTOMATIC1111's.
    names: &'static [&'static str],
    thresholds: &'static [Threshold],
    network: Option<Needs>,
}

const fn row(kind: Kind, names: &'static [&'static str], thresholds: &'static [Threshold]) -> Row {
    Row {
        kind,
        names,
        thresholds,
        network: None,
    }
}

const fn of_network(
    kind: Kind,
    names: &'static [&'static str],
    thresholds: &'static [Threshold],
    kinds: &'static [NetworkKind],
) -> Row {
    Row {
        kind,
        names,
        thresholds,
        network: Some(Needs {
            kinds,
            with: &[],
            without: &[],
        }),
    }
}

const fn named(
    kind: Kind,
    names: &'static [&'static str],
    kinds: &'static [NetworkKind],
    (with, without): (&'static [&'static str], &'static [&'static str]),
) -> Row {
    Row {
        kind,
        names,
        thresholds: &[],
        network: Some(Needs {
            kinds,
            with,
            without,
        }),
    }
}

/// Words in names of networks that draw coarse lines: the published file's among them.
const COARSE: &[&str] = &["coarse", "sk_model2"];

/// The exponent of greys.
const GAMMA: Threshold = ("gamma correction", 1.0, 0.1, 2.0);

const ROWS: [Row; 24] = [
    row(Kind::None, &["none"], &[]),
    row(
        Kind::Invert,
        &["invert", "invert (from white bg & black line)"],
        &[],
    ),
    row(
        Kind::Canny,
        &["canny"],
        &[
            ("low threshold", 100.0, 1.0, 255.0),
            ("high threshold", 200.0, 1.0, 255.0),
        ],
    ),
    row(
        Kind::Threshold,
        &["threshold"],
        &[("binarization threshold", 127.0, 0.0, 255.0)],
    ),
    row(
        Kind::Scribble,
        &["scribble-xdog", "scribble_xdog"],
        &[("XDoG threshold", 32.0, 1.0, 64.0)],
    ),
    row(
        Kind::Lineart,
        &[
            "lineart-standard",
            "lineart_standard",
            "lineart_standard (from white bg & black line)",
        ],
        &[],
    ),
    row(
        Kind::Tile,
        &["tile", "tile_resample"],
        &[("down sampling rate", 1.0, 1.0, 8.0)],
    ),
    row(
        Kind::Blur,
        &["blur", "blur_gaussian"],
        &[("sigma", 9.0, 0.01, 32.0)],
    ),
    row(
        Kind::Intensity,
        &["intensity", "recolor_intensity"],
        &[GAMMA],
    ),
    row(
        Kind::Luminance,
        &["luminance", "recolor_luminance"],
        &[GAMMA],
    ),
    row(
        Kind::Shuffle,
        &["shuffle"],
        &[("seed", 0.0, 0.0, 4294967295.0)],
    ),
    row(
        Kind::Inpaint,
        &["inpaint", "inpaint_only", "inpaint_global_harmonious"],
        &[],
    ),
    of_network(
        Kind::SoftEdge,
        &["softedge-hed", "softedge_hed"],
        &[],
        &[NetworkKind::Hed],
    ),
    of_network(
        Kind::SoftEdgeSafe,
        &["softedge-hed-safe", "softedge_hedsafe"],
        &[],
        &[NetworkKind::Hed],
    ),
    of_network(
        Kind::ScribbleHed,
        &["scribble-hed", "scribble_hed"],
        &[],
        &[NetworkKind::Hed],
    ),
    named(
        Kind::LineartNetwork,
        &["lineart", "lineart_realistic"],
        &[NetworkKind::Lineart],
        (&[], COARSE),
    ),
    named(
        Kind::LineartCoarse,
        &["lineart-coarse", "lineart_coarse"],
        &[NetworkKind::Lineart],
        (COARSE, &[]),
    ),
    of_network(
        Kind::LineartAnime,
        &["lineart-anime", "lineart_anime"],
        &[],
        &[NetworkKind::LineartAnime],
    ),
    of_network(
        Kind::Mlsd,
        &["mlsd", "mlsd", "m-lsd"],
        &[
            ("MLSD value threshold", 0.1, 0.01, 2.0),
            ("MLSD distance threshold", 0.1, 0.01, 20.0),
        ],
        &[NetworkKind::Mlsd],
    ),
    of_network(
        Kind::Depth,
        &["depth", "depth"],
        &[],
        &[NetworkKind::DepthAnything, NetworkKind::Dpt],
    ),
    of_network(
        Kind::DepthMidas,
        &["depth-midas", "depth_midas"],
        &[],
        &[NetworkKind::Dpt],
    ),
    of_network(
        Kind::DepthAnything,
        &["depth-anything", "depth_anything_v2", "depth_anything"],
        &[],
        &[NetworkKind::DepthAnything],
    ),
    of_network(
        Kind::Normal,
        &["normal", "normal_midas", "normal_map"],
        &[("normal background threshold", 0.4, 0.0, 1.0)],
        &[NetworkKind::Dpt, NetworkKind::DepthAnything],
    ),
    of_network(Kind::Pose, &["pose", "openpose"], &[], &[NetworkKind::Body]),
];

/// What to do instead of preprocessors that are not implemented, by words of their names.
const INSTEAD: [(&str, &str); 6] = [
    (
        "dw_openpose",
        "DWPose is an ONNX model, which is not read: openpose has OpenPose's body",
    ),
    (
        "openpose_",
        "hands and faces are not implemented: openpose has the body",
    ),
    ("colorfix", "tile has what such a ControlNet wants to see"),
    ("lama", "inpaint is without LaMa"),
    ("pidi", "HED has such edges (softedge-hed, scribble-hed)"),
    ("normal_bae", "normal has those of depths"),
];

impl Kind {
    /// The kind of this name.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names, and says what there is instead.
    pub fn from_name(name: &str) -> Result<Self> {
        let asked = if name.is_empty() { "none" } else { name.trim() };
        let is = |row: &&Row| {
            let mut names = row.names.iter();
            names.any(|known| known.eq_ignore_ascii_case(asked))
        };
        if let Some(row) = ROWS.iter().find(is) {
            return Ok(row.kind);
        }
        let lower = asked.to_lowercase();
        let instead = INSTEAD.iter().find(|(word, _)| lower.contains(word));
        let instead = instead.map_or(String::new(), |(_, text)| format!(" ({text})"));
        let names: Vec<_> = ROWS.iter().map(|row| row.names[0]).collect();
        Err(Error::Usage(format!(
            "the preprocessor {name:?} is not implemented{instead}; send the picture as the ControlNet wants it (none), or use one of {}",
            names.join(", ")
        )))
    }

    fn row(self) -> &'static Row {
        // Every kind has one: a test says so.
        ROWS.iter().find(|row| row.kind == self).unwrap_or(&ROWS[0])
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.kind)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().names[0]
    }

    /// The name that AUTOMATIC1111's extension has for it.
    pub fn web_name(self) -> &'static str {
        let names = self.row().names;
        names.get(1).unwrap_or(&names[0])
    }

    /// What can be set.
    pub fn thresholds(self) -> &'static [Threshold] {
        self.row().thresholds
    }

    /// Which networks it takes, if it needs one.
    pub fn network(self) -> Option<Needs> {
        self.row().network
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_row() {
        for kind in Kind::all() {
            assert_eq!(Kind::from_name(kind.name()).unwrap(), kind);
            assert_eq!(Kind::from_name(kind.web_name()).unwrap(), kind);
            assert_eq!(kind.row().kind, kind);
        }
        assert_eq!(Kind::from_name("").unwrap(), Kind::None);
        for (name, instead) in [
            ("openpose_full", "hands"),
            ("dw_openpose_full", "ONNX"),
            ("tile_colorfix+sharp", "tile"),
            ("anything", "canny"),
        ] {
            let error = Kind::from_name(name).unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains(instead) && error.contains("canny"),
                "{error}"
            );
        }
    }
}
