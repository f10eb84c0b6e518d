//! Metrics of generated images, and of what features tell.
//!
//! A network turns images into rows of features ([`Rows`]). Two sets of rows, of real and of generated images, are compared by the
//! distance of their distributions ([`frechet_distance`], with its deviation, [`frechet_deviation`]), and by the share of each set that
//! lies among the other ([`precision_and_recall`]). [`sharpness`] needs no network. A [`LinearReader`] tells whether a property can be
//! read from features by a linear function: whether the features of captions have the colour of an object, for example.
//!
//! Nothing here depends on the network, and each metric is the same in every call.
//!
//! # Example
//!
//! ```
//! use phalanx_quality::{LinearReader, Rows, chance};
//!
//! // Features of six captions; the first one tells the class, the second is noise.
//! let fitted = [1.0, 0.2, -1.0, 0.1, 0.9, -0.3, -1.1, 0.0, 1.2, 0.4, -0.8, -0.2];
//! let classes = [1, 0, 1, 0, 1, 0];
//! let reader = LinearReader::new(Rows::new(&fitted, 2)?)?;
//!
//! let further = [0.8, 0.3, -0.9, 0.3];
//! let read = reader.read(Rows::new(&further, 2)?)?;
//! assert_eq!(reader.accuracy(&classes, &read, &[1, 0])?, 1.0);
//! assert_eq!(chance(&classes, &[1, 0]), 0.5);
//! # Ok::<(), phalanx_quality::QualityError>(())
//! ```
#![forbid(unsafe_code)]

mod error;
mod rows;

mod frechet;
mod linear_reader;
mod manifold;
mod sharpness;

pub use error::QualityError;
pub use frechet::{frechet_deviation, frechet_distance};
pub use linear_reader::{LinearReader, ReadRows, chance};
pub use manifold::{PrecisionRecall, precision_and_recall};
pub use rows::Rows;
pub use sharpness::sharpness;

/// Tests of the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
