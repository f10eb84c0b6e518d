//! A world of threads that receives random messages, for the fuzzer of this workspace.

use std::sync::OnceLock;

use phalanx_collectives::{Communicator, threads};
use phalanx_tensor::{BuildOptions, ParamStore, StoreBuilder, nn};

use crate::error::Result;

/// A message from one rank to another, outside of collectives.
#[derive(Debug)]
pub(crate) struct InjectedMessage {
    pub(crate) from: usize,
    pub(crate) bytes: Vec<u8>,
}

/// Returns ranks as threads, shared by all cases.
fn ranks(of: &'static OnceLock<Vec<Communicator>>, count: usize) -> &'static [Communicator] {
    of.get_or_init(|| threads(count).unwrap_or_else(|error| unreachable!("a world of threads: {error}")))
}

/// Returns three ranks that send each other messages.
pub(crate) fn world() -> &'static [Communicator] {
    static WORLD: OnceLock<Vec<Communicator>> = OnceLock::new();
    ranks(&WORLD, 3)
}

/// Returns a world of one rank.
pub(crate) fn alone() -> &'static Communicator {
    static ALONE: OnceLock<Vec<Communicator>> = OnceLock::new();
    &ranks(&ALONE, 1)[0]
}

/// Returns a model of two buckets with 8 and 3 elements.
pub(crate) fn store() -> Result<ParamStore> {
    let builder = StoreBuilder::new(BuildOptions::default());
    nn::Linear::new(&builder.root().pp("a").block(), 3, 2)?;
    nn::Linear::new(&builder.root().pp("b").block(), 2, 1)?;
    Ok(builder.build()?)
}

/// Returns all received messages of a rank.
pub(crate) fn taken(rank: usize, channel: u32) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while let Some((_, bytes)) = world()[rank].try_recv(channel)? {
        all.push(bytes);
    }
    Ok(all)
}

/// Sends all messages to rank 0, then a malformed one, so that a receiver that expects more does not wait.
pub(crate) fn all_say(channel: u32, said: &[InjectedMessage]) -> Result<()> {
    for InjectedMessage { from, bytes } in said {
        world()[*from].send_to(0, channel, bytes)?;
    }
    Ok(world()[1].send_to(0, channel, &[])?)
}
