//! Searches: settings of a sweep's runs that are drawn at random, or from the outcomes of earlier runs.
//!
//! A *trial* is one draw of all keys. Trial *n* of a search that trains *N* runs at once is drawn from the outcomes of
//! the trials up to *n - N*, and judged against them. It waits for these. So its settings depend on the file, its seed
//! and *N*, and not on the order in which runs end.
//!
//! - [`Search`]: the section `[search]` of a sweep's file. [`Space`]: the values of its keys.
//! - [`draw`]: the settings of a trial, at random or by TPE.
//! - [`Rungs`]: the values of a trial at the steps at which it may be stopped, and the rules that stop it.
//! - [`SearchRecord`]: the drawn trials, in the sweep's folder.

mod space;

mod file;

mod normal;
mod parzen;
mod tpe;

mod draw;

mod prune;
mod record;

pub use draw::draw;
pub use file::{Best, Method, Prune, PruneKind, Search};
pub use phalanx_config::Goal;
pub use prune::{Peer, Rungs, StopDecision};
pub use record::{RecordedEnd, RecordedSearch, RecordedTrial, SearchRecord};
pub use space::{Between, Number, SearchKey, Space};
pub use tpe::Observation;
