//! Integration tests, as one program.

mod agreement;
mod bubbles;
#[path = "../../../tensor/tests/checking/mod.rs"]
mod checking;
mod collective;
mod common;
mod cut_candle;
mod cut_case;
mod cut_image_models;
mod cut_precision;
mod further_axes;
mod gossip;
mod host_parameters;
mod local_sgd;
mod logical_ranks;
mod lost_ranks;
mod mesh;
mod on_devices;
mod parameter_server;
mod pipeline;
mod plan;
mod pushes;
mod schedules;
mod steps;
mod synchrony;
mod tensor_parallel;
