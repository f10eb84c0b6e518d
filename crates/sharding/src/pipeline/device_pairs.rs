//! Messages between chunks in the memory of GPUs: a communicator for each way, whose operations lie on a stream of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Shape};
use phalanx_codecs::buffer::InPlace;
use phalanx_collectives::{Communicator, Handle};
use phalanx_tensor::{Array, ComputeDevice};

use super::division::DividedPass;
use super::message::MessageTag;
use crate::{Result, ShardingError};

/// A way from one chunk to another.
type Way = (usize, usize);

/// The buffers of a message: the one that is read, and the one that is written.
type Sending = Handle<(InPlace, InPlace)>;

/// The ways between the chunks of a rank and those of others, on GPUs.
///
/// A message is an exchange of the two ranks of a way, of which one gives and the other takes. It begins when the computing streams of
/// both have reached it, and neither host waits.
#[derive(Debug)]
pub struct DevicePairs {
    ways: BTreeMap<Way, Communicator>,
    device: ComputeDevice,
    /// Messages that may still be read.
    sent: Mutex<VecDeque<Sending>>,
}

impl DevicePairs {
    /// Connects the ranks along a pipeline, those of `comm`, for the values of passes and their gradients; `places` has the rank of each
    /// chunk. All ranks call this together.
    ///
    /// # Errors
    /// The error of the world.
    pub fn connect(
        comm: &Communicator,
        passes: &[&DividedPass],
        places: &[usize],
        device: &ComputeDevice,
    ) -> Result<Arc<Self>> {
        let sent = passes.iter().flat_map(|pass| &pass.sent);
        let both = sent.flat_map(|sent| sent.to.iter().flat_map(|to| [(sent.from, *to), (*to, sent.from)]));
        let all: BTreeSet<Way> = both.filter(|(from, to)| places[*from] != places[*to]).collect();
        let mut ways = BTreeMap::new();
        for (from, to) in all {
            let ends = [places[from], places[to]];
            let own = ends.contains(&comm.rank()).then_some(0);
            if let Some(pair) = comm.split(own, i64::try_from(comm.rank()).unwrap_or_default())? {
                ways.insert((from, to), pair);
            }
        }
        Ok(Arc::new(Self { ways, device: device.clone(), sent: Mutex::default() }))
    }

    fn sent(&self) -> MutexGuard<'_, VecDeque<Sending>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pair(&self, tag: MessageTag) -> Result<&Communicator> {
        let unknown = || ShardingError::Pipeline(format!("{tag} goes a way that the passes do not have"));
        self.ways.get(&(tag.from, tag.to)).ok_or_else(unknown)
    }

    /// Returns memory that no message reads or writes.
    fn unused(&self, dtype: DType) -> Result<InPlace> {
        Ok(InPlace::of(&self.device.unwritten_flat(1, dtype)?)?)
    }

    /// Sends an array.
    pub(super) fn send(&self, tag: MessageTag, array: &Array) -> Result<()> {
        let (pair, array) = (self.pair(tag)?, array.contiguous()?);
        let (mut out, none) = parts(pair);
        out[1 - pair.rank()] = 0..array.elem_count();
        let from = InPlace::of(&array)?;
        let sending = pair.all_to_allv_into_async((from, out), (self.unused(array.dtype())?, none));
        let mut sent = self.sent();
        sent.push_back(sending);
        while sent.front().is_some_and(Handle::is_done) {
            sent.pop_front().map(Handle::wait).transpose().map_err(|error| tag.lost("sending", &error))?;
        }
        Ok(())
    }

    /// Receives an array.
    pub(super) fn receive(&self, tag: MessageTag, shape: &Shape, dtype: DType) -> Result<Array> {
        let pair = self.pair(tag)?;
        let array = self.device.unwritten_flat(shape.elem_count(), dtype)?;
        let (mut inn, none) = parts(pair);
        inn[1 - pair.rank()] = 0..array.elem_count();
        let coming = pair.all_to_allv_into_async((self.unused(dtype)?, none), (InPlace::of(&array)?, inn));
        coming.wait().map_err(|error| tag.lost("waiting for", &error))?;
        Ok(array.reshape(shape.dims())?)
    }

    /// Lets later work on the memory of messages wait until they are sent.
    pub(super) fn finish(&self) -> Result<()> {
        let sent = std::mem::take(&mut *self.sent());
        sent.into_iter().try_for_each(|sending| sending.wait().map(drop)).map_err(ShardingError::from)
    }
}

/// Returns the parts of a message that has none: one for each rank.
fn parts(pair: &Communicator) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let none = vec![0..0; pair.world_size()];
    (none.clone(), none)
}
