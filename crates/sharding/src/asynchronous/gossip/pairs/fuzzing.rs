//! The handling of messages of pairwise averages by a rank.

use std::sync::{Condvar, Mutex};

use super::{Pairs, State, hear};
use crate::asynchronous::message::Message;
use crate::rehearsed::{InjectedMessage, world};

/// Passes messages to rank 0, which has these parameters and waits for an answer for each bucket. Ends at the first
/// refused message, or when all ranks have left.
pub(in crate::asynchronous::gossip) fn hears(own: Vec<Vec<f32>>, said: &[InjectedMessage]) {
    let (mail, lengths) = (&world()[0], own.iter().map(Vec::len).collect::<Vec<_>>());
    let state = State { owed: own.len(), own, ..State::default() };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    let pairs = Pairs { mail: mail.clone(), state, changed };
    for InjectedMessage { from, bytes } in said {
        let heard = Message::read(bytes).and_then(|message| hear(&pairs, *from, message));
        if !matches!(heard, Ok(false)) {
            break;
        }
    }
    let state = pairs.state();
    assert!(state.own.iter().map(Vec::len).eq(lengths), "there are other parameters now");
    assert!(state.owed <= state.own.len() && state.left <= world().len());
}
