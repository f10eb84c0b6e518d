//! Numbering of hosts.

use super::backend::Backend;
use crate::algorithms::{Group, gathered};
use crate::error::Result;

/// Numbers the hosts of all ranks by their names, in the order of appearance. Returns the ranks of this rank's host. Every rank
/// calls this at the same place.
pub(crate) fn number_hosts(backend: &mut Backend, host: &str) -> Result<Group> {
    let all = backend.all_ranks();
    let names = gathered::all_gather(backend, &all, host.as_bytes())?;
    let mut known: Vec<&Vec<u8>> = Vec::new();
    backend.hosts.clear();
    for name in &names {
        let number = known.iter().position(|other| *other == name).unwrap_or(known.len());
        if number == known.len() {
            known.push(name);
        }
        backend.hosts.push(number);
    }
    let own = backend.hosts[backend.rank];
    let here = (0..backend.world_size).filter(|rank| backend.hosts[*rank] == own).collect();
    Ok(Group::of(here, backend.rank).unwrap_or_else(|| Group::world(1, 0)))
}
