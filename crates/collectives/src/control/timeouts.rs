//! Time limits of the control plane.

use std::time::Duration;

/// The longest wait of the coordinator for the answers of all ranks.
pub(super) const ANSWERING: Duration = Duration::from_millis(700);

/// The longest wait of a rank for the coordinator's collected answers.
pub(super) const ASKING: Duration = Duration::from_millis(1500);

/// The longest wait of a rank that reports a failure until the others were told: it may be about to exit.
pub(super) const TELLING: Duration = Duration::from_secs(1);

/// The longest wait of a rank that leaves until the other side has read its goodbye.
pub(super) const PARTING: Duration = Duration::from_secs(1);

/// The longest time between the end of a process's connections and that of the process itself.
pub(super) const EXITING: Duration = Duration::from_secs(2);
