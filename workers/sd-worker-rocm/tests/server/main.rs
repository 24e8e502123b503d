//! The HTTP server over a stand-in for the model: contracts, limits, the queue, hostile clients, and the page in a
//! browser.

#[allow(dead_code)]
#[path = "../model/common.rs"]
mod common;
#[allow(dead_code)]
#[path = "../model/face_networks.rs"]
mod face_networks;
#[allow(dead_code)]
#[path = "../model/hashed.rs"]
mod hashed;
#[allow(dead_code)]
#[path = "../model/small.rs"]
mod small;

#[allow(dead_code)]
#[path = "../program/mod.rs"]
mod program;

mod browser;
mod choices;
mod comfy;
mod control;
mod crew;
mod editing;
mod life;
mod limits;
mod openai;
mod orchestrator;
mod page_canvas;
mod page_faces;
mod page_form;
mod page_gallery;
mod page_models;
mod page_settings;
mod page_tools;
mod page_work;
mod queue;
mod saved;
mod sdcpp;
mod support;
mod swarm;
mod videos;
mod web_ui;
mod web_ui_fields;
mod web_ui_routes;
mod wording;
mod xl_jobs;
