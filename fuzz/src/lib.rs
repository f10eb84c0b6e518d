//! Drawn and damaged bytes for every reader of bytes from outside: what other processes send, and what files hold.
//!
//! A [`targets::Target`] is a reader, some inputs that it reads, and what it knows of their form. A case takes one of these
//! inputs and changes it ([`mutate`], [`json`]), or draws noise; a seed and a number fix it. A reader may refuse as it likes; it
//! fails if it panics, takes memory out of proportion to what it was given, or does not come back in time ([`run`]).
//!
//! Nothing looks at which code a case reaches, as fuzzers of compilers do that need their newest versions: inputs are therefore
//! changed by their form as far as that is known, so that damage lies behind checksums and lengths too.
#![forbid(unsafe_code)]

pub mod json;
pub mod mutate;
pub mod random;
pub mod run;
pub mod targets;
