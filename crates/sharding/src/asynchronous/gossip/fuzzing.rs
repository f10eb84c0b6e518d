//! The handling of neighbours' messages by a rank.

use super::pairs;
use super::rounds::{CHANNEL, Rounds};
use crate::Result;
use crate::asynchronous::replica::Replica;
use crate::rehearsed::{Said, all_say, alone, store, world};
use crate::synchrony::SyncOptions;

/// Rank 0 hears what was said by neighbours that average in pairs.
pub(crate) fn pair_hears(said: &[Said]) {
    pairs::fuzzing::hears(vec![vec![1.0; 3], Vec::new(), vec![-2.0; 5]], said);
}

/// Rank 0 takes two steps of rounds of all neighbours, or of one in turn, who say this and then something garbled.
pub(crate) fn round_hears(push_sum: bool, said: &[Said]) -> Result<()> {
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
