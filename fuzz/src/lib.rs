//! Drawn and damaged bytes for every reader of bytes from outside: what other processes send, and what files hold.
//!
//! A [`targets::Target`] is a reader, some inputs that it reads, and what it knows of their form. A case takes one of these
//! inputs and changes it ([`mutate`], [`json`]), or draws noise; a seed and a number fix it. A reader may refuse as it likes; it
//! fails if it panics, takes memory out of proportion to what it was given, or does not come back in time ([`run`]).
//!
//! Inputs are changed by their form as far as that is known, so that damage lies behind checksums and lengths too. In a build with
//! counters of edges ([`coverage`]) an input that reaches what none before it did is kept, and changed in its turn ([`corpus`]); the
//! shortest of them are in the tree ([`kept`]).
#![deny(unsafe_code)]

pub mod json;
pub mod kept;
pub mod mutate;
pub mod random;
pub mod targets;

pub mod corpus;
pub mod coverage;

pub mod run;
