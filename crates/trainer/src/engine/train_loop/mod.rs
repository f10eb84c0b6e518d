//! The training loop of one rank.
//!
//! | file or folder | holds |
//! |---|---|
//! | `environment` | everything that stays constant during training |
//! | `state` | the networks and the rest of the training state |
//! | `schedule` | forward and backward over the micro-batches of a step |
//! | `step` | one step: data, forward and backward, reduction, update |
//! | `reporter` | losses, metrics, resources, the trace and the summary |
//! | `requests` | requests of users |
//! | `saving`, `evaluation` | checkpoints, evaluation and samples |
//! | `selection` | the best evaluation so far |
//! | `world` | ranks that are lost, leave or join |
//! | `train` | the entry points |
//! | `run` | one rank of a run, from the first step to the last |
//! | `steps`, `recovery`, `membership` | its loop, and how it continues when ranks are lost, leave or join |

mod damage_report;
mod environment;
mod evaluation;
mod faults;
#[cfg(any(test, fuzzing))]
mod fuzzing;
mod membership;
mod meter;
mod rank_report;
mod recovery;
mod replica_check;
mod replicas;
mod reporter;
mod requests;
mod resumption;
mod run;
mod sample_kind;
mod samples;
mod saving;
mod schedule;
mod schedule_end;
mod selection;
mod state;
mod step;
mod steps;
mod train;
mod trainable;
mod world;

#[cfg(any(test, fuzzing))]
pub use fuzzing::Resumable;
pub use replicas::{ReplicaFailure, train_replicas};
pub use reporter::has_diverged;
pub use run::RunEnd;
pub use train::{rehearse, train};
