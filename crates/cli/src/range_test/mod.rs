//! Range tests: the loss over a learning rate that rises from step to step, and the rate that it suggests (Smith 2017).
//!
//! ```
//! use phalanx_cli::range_test::{RatePoint, suggestion};
//!
//! // Rates from 1e-6 to 1, and a loss that falls around 1e-3 and diverges from 0.1 on.
//! let rates = (0..120).map(|at| 1e-6 * 10f64.powf(f64::from(at) / 20.0));
//! let loss = |rate: f64| 2.0 / (1.0 + 1e3 * rate) + (10.0 * rate).powi(2);
//! let points: Vec<RatePoint> = rates.map(|rate| RatePoint { rate, loss: loss(rate) }).collect();
//! let found = suggestion(&points)?;
//! assert!((3e-3..2e-2).contains(&found.rate), "{}", found.rate);
//! # Ok::<(), phalanx_cli::range_test::RangeTestError>(())
//! ```

mod curve;
mod picture;

pub use curve::{LEAST_POINTS, RangeTestError, RatePoint, RateSuggestion, suggestion};
pub use picture::picture;
