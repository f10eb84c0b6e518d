//! Variables of MPICH and its relatives (Intel MPI, MVAPICH).

use super::interface;
use super::pmi::PmiJob;
use super::rank_info::{RankInfo, RankNumbers, RankZeroHost};
use super::variables::{Variables, port};
use crate::error::{EnvironmentError, Result};

/// Reads the rank that Hydra's variables describe. They contain neither the job's name nor a host; `ask_pmi` returns both.
pub(super) fn rank_info(
    get: Variables<'_>,
    ask_pmi: &dyn Fn(u64, bool) -> Result<PmiJob>,
) -> Result<RankInfo> {
    let numbers =
        RankNumbers::read(get, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"], Some("MPI_LOCALNRANKS"))?;
    let port = port(get, "MASTER_PORT")?;
    let (job, rank_0) = match (RankZeroHost::given_or_local(get, &numbers), port) {
        // Everything is given: the launcher is not asked.
        (Some(rank_0), Some(_)) => (String::new(), rank_0),
        (Some(rank_0), None) => (ask_pmi(numbers.rank, false)?.job, rank_0),
        (None, _) => {
            let PmiJob { job, addresses } = ask_pmi(numbers.rank, true)?;
            let advice = "is not set, and rank 0 has not published its addresses; give the host of rank 0 to all ranks: \
                          `mpiexec -genv MASTER_ADDR HOST`";
            let nearest =
                interface::nearest(&addresses).ok_or_else(|| EnvironmentError::new("MASTER_ADDR", advice))?;
            (job, RankZeroHost::by_any_address(nearest.to_string()))
        }
    };
    Ok(numbers.with(job, port, rank_0))
}
