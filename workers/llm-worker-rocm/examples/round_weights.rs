//! Writes a GGUF model in float32 with the matrices of its blocks rounded with scales of a shape.
//!
//!     round_weights MODEL.gguf SHAPE OUTPUT.gguf      the shape by its name
//!     round_weights                                   the names, with the bits of an element
//!
//! `scripts/weight-perplexity` makes a table with it.

#[path = "../tests/shapes/mod.rs"]
mod shapes;

use shapes::Shape;
use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => {
            for (name, shape) in Shape::ALL {
                println!("{name}\t{:.2}", shape.bits());
            }
        }
        [model, name, output] => {
            let Some((_, shape)) = Shape::ALL.iter().find(|(known, _)| known == name) else {
                eprintln!("round_weights: there is no shape {name:?}");
                std::process::exit(2);
            };
            let error = shapes::write(Path::new(model), *shape, Path::new(output));
            println!("{error}");
        }
        _ => {
            eprintln!("usage: round_weights [MODEL.gguf SHAPE OUTPUT.gguf]");
            std::process::exit(2);
        }
    }
}
