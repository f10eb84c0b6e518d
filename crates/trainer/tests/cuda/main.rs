//! Trainings on a GPU by configuration, in the built program, on the software GPU.
#![cfg(feature = "cuda")]

#[path = "../../../cuda/tests/software/mod.rs"]
mod software;

mod place;

mod trainings;

mod offload;

mod graphs;
mod images;
mod machine;
mod ranks;
