//! The integration tests of this crate, in one program so that the engine is linked once.

mod harness;

mod experts;
mod generation;
mod language;
mod models;
mod precision;
mod sampling;
mod stackgan;
mod unet;
