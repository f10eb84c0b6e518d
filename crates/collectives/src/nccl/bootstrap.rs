//! Set-up of NCCL's communicator: its unique id travels through an existing communicator.

use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::raw::{self, ID};
use crate::error::{CommError, Result};

/// The operation of these exchanges, in errors.
pub(super) const OPENING: &str = "opening";

/// The first byte of a message: a result follows, or the reason why there is none.
const HERE: u8 = 1;
const PROBLEM: u8 = 0;

/// Exchanges a result of every rank. If one has a problem, all get the error that names it, so no rank waits.
fn share(
    own: std::result::Result<Vec<u8>, String>,
    exchange: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>,
) -> Result<Vec<Vec<u8>>> {
    let (mark, text) = match own {
        Ok(bytes) => (HERE, bytes),
        Err(problem) => (PROBLEM, problem.into_bytes()),
    };
    let all = exchange(&[&[mark], text.as_slice()].concat())?;
    let part = |(rank, message): (usize, Vec<u8>)| match message.split_first() {
        Some((&HERE, bytes)) => Ok(bytes.to_vec()),
        Some((_, text)) => {
            let problem = format!("rank {rank}: {}", String::from_utf8_lossy(text));
            Err(CommError::Nccl { operation: OPENING, problem })
        }
        None => Err(CommError::Nccl { operation: OPENING, problem: format!("rank {rank} says nothing") }),
    };
    all.into_iter().enumerate().map(part).collect()
}

/// Checks that every rank has NCCL.
pub(super) fn check(exchange: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>) -> Result<()> {
    share(raw::version().map(|_| Vec::new()), exchange).map(|_| ())
}

/// Returns the unique id of the communicator, made by rank 0.
pub(super) fn id(
    rank: usize,
    context: &Arc<CudaContext>,
    exchange: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>,
) -> Result<[u8; ID]> {
    let make = || {
        raw::version()?;
        context.bind_to_thread().map_err(|error| error.to_string())?;
        if rank == 0 { raw::new_id().map(Vec::from) } else { Ok(Vec::new()) }
    };
    let all = share(make(), exchange)?;
    let name = all.first().and_then(|name| name.as_slice().try_into().ok());
    name.ok_or_else(|| CommError::Nccl { operation: OPENING, problem: "rank 0 gives no name".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_one_rank_reaches_all() {
        let parts = share(Ok(vec![1, 2]), |own| Ok(vec![own.to_vec(), vec![HERE]]));
        assert_eq!(parts, Ok(vec![vec![1, 2], Vec::new()]));
        let error = share(Err("no library".to_owned()), |own| Ok(vec![vec![HERE], own.to_vec()]));
        let expected = "opening by NCCL: rank 1: no library";
        assert_eq!(error.expect_err("rank 1 has none").to_string(), expected);
        let error = share(Ok(Vec::new()), |_| Ok(vec![Vec::new()])).expect_err("an empty message");
        assert!(error.to_string().contains("rank 0 says nothing"), "{error}");
    }
}
