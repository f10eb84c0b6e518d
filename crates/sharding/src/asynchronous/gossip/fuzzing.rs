//! The handling of neighbours' messages by a rank.

use super::pairs;
use super::rounds::{CHANNEL, Rounds};
use crate::Result;
use crate::asynchronous::replica::Replica;
use crate::rehearsed::{InjectedMessage, all_say, alone, store, world};
use crate::synchrony::SyncOptions;

/// Passes messages of neighbours to rank 0, which averages in pairs.
pub(crate) fn pair_hears(said: &[InjectedMessage]) {
    pairs::fuzzing::hears(vec![vec![1.0; 3], Vec::new(), vec![-2.0; 5]], said);
}

/// Runs two steps of rounds on rank 0, with all neighbours or one in turn. The neighbours send these messages and then
/// a malformed one.
pub(crate) fn round_hears(push_sum: bool, said: &[InjectedMessage]) -> Result<()> {
    let store = store()?;
    let replica = Replica::new(&store, alone().clone(), "gossip")?;
    let mut rounds = Rounds::new(world()[0].clone(), &SyncOptions::default(), push_sum);
    all_say(CHANNEL, said)?;
    rounds.begin(&replica, 1.0)?;
    for step in 0..2 {
        let before = replica.all_values()?;
        rounds.send(&replica, step)?;
        rounds.mix(&replica, &before, step)?;
    }
    assert_eq!(rounds.waited().1, 2);
    Ok(())
}
