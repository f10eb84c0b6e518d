//! Variables of torchrun, and of other programs that set `RANK` and `WORLD_SIZE`.

use super::rank_info::{RankInfo, RankNumbers, RankZeroHost};
use super::variables::{Variables, number, port};
use crate::error::{EnvironmentError, Result};

/// The port of rank 0 if neither a launcher nor the user gives one and the job has no name.
pub(super) const DEFAULT_PORT: u16 = 29_500;

/// Reads the rank that torchrun's variables describe. Scripts and Phalanx's own supervisors set the same ones.
pub(super) fn rank_info(get: Variables<'_>) -> Result<RankInfo> {
    let numbers = RankNumbers::read(get, ["RANK", "WORLD_SIZE", "LOCAL_RANK"], Some("LOCAL_WORLD_SIZE"))?;
    let rank_0 = RankZeroHost::given_or_local(get, &numbers).ok_or_else(|| {
        EnvironmentError::new("MASTER_ADDR", "is not set; it is the host where rank 0 listens")
    })?;
    let given = port(get, "MASTER_PORT")?;
    // The agent keeps its own store at MASTER_PORT while the ranks run. The name leaves out the number of restarts, which each
    // agent counts for itself.
    let agent_has_store = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text.trim() == "True");
    let (job, port) = match (agent_has_store, given) {
        // Phalanx's supervisors on several hosts cannot know a free port of rank 0's host.
        _ if get("PHALANX_JOB").is_some() => (get("PHALANX_JOB").unwrap_or_default(), None),
        (true, Some(store)) => {
            let run = get("TORCHELASTIC_RUN_ID").unwrap_or_default();
            (format!("torchrun {}:{store} {run}", rank_0.address), None)
        }
        _ => (String::new(), Some(given.unwrap_or(DEFAULT_PORT))),
    };
    Ok(numbers.with(job, port, rank_0))
}

/// The torchrun agent that started this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchrunAgent {
    /// The name of the launch (`--rdzv-id`); empty or `none` if it has none.
    pub run_id: String,
    /// The number of restarts after failures that the agent allows.
    pub max_restarts: u64,
}

impl TorchrunAgent {
    /// Returns the agent whose variables `get` returns; `None` if no agent set any.
    pub fn from_variables(get: Variables<'_>) -> Option<Self> {
        let run_id = get("TORCHELASTIC_RUN_ID")?;
        let max_restarts = number(get, "TORCHELASTIC_MAX_RESTARTS").ok().flatten().unwrap_or(0);
        Some(Self { run_id, max_restarts })
    }
}
