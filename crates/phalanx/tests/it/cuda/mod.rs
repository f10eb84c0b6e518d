//! Trainings on a GPU by configuration, in the built program, on the software GPU.

#[path = "../../../../cuda/tests/software/mod.rs"]
mod software;

mod place;

mod networks;
mod trainings;

mod offload;

mod codecs;
mod elastic;
mod graphs;
mod images;
mod logical;
mod loss_scale;
mod machine;
mod ranks;
mod synchrony;
