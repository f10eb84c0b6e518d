//! What travels encoded between workers and servers: gradients that are pushed, and values that are pulled.

use std::sync::Arc;

use phalanx_collectives::Communicator;
use phalanx_tensor::{FlatParam, FlatStorage};

use super::places::Places;
use super::server::{TO_SERVER, range};
use crate::beside::{Pending, Worker};
use crate::buffer::with_singles;
use crate::codec::{CodecState, Encoded, Left, PushCodec};
use crate::message::{Kind, Message};
use crate::{Options, Overlap, Result, ShardingError};

/// By what gradients and values travel, where they are not the numbers themselves.
#[derive(Debug, Clone, Default)]
pub(super) struct Encoding {
    pub(super) gradients: Option<Arc<PushCodec>>,
    pub(super) values: Option<Arc<PushCodec>>,
}

impl Encoding {
    /// What options ask for.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if parameters share a scale in chunks of none.
    pub(super) fn of(options: &Options) -> Result<Self> {
        let gradients = options.codec.as_ref().and_then(|codec| codec.push()).map(Arc::new);
        let values = options.weight_chunk.map(PushCodec::of_weights).transpose()?.map(Arc::new);
        Ok(Self { gradients, values })
    }

    /// The numbers of a message, which are so many.
    ///
    /// # Errors
    /// [`ShardingError::State`] if they are not, and those of a codec.
    pub(super) fn numbers(&self, message: Message, len: usize) -> Result<Vec<f32>> {
        let codec = match message.kind {
            Kind::PushCoded => &self.gradients,
            Kind::ValuesCoded => &self.values,
            _ => &None,
        };
        if let Some(codec) = codec {
            let mut numbers = vec![0.0; len];
            codec.decode(&message.coded, &mut numbers)?;
            return Ok(numbers);
        }
        if message.values.len() != len || !message.coded.is_empty() {
            let (kind, bucket, found) = (message.kind, message.bucket, message.values.len());
            let problem =
                format!("{kind:?} of {found} numbers does not fit bucket {bucket}, which needs {len}");
            return Err(ShardingError::state("parameter server", problem));
        }
        Ok(message.values)
    }
}

/// Values of a version, encoded once for all workers that pull it.
#[derive(Debug)]
pub(super) struct Rounded {
    pub(super) version: u64,
    /// By bucket; of frozen ones nothing.
    pub(super) buckets: Vec<Vec<u8>>,
}

impl Rounded {
    /// Rounds what a server has.
    pub(super) fn of(twins: &[FlatParam], version: u64, codec: &PushCodec) -> Result<Self> {
        let round = |twin: &FlatParam| match twin.owned_values()?.filter(|_| twin.trainable()) {
            Some(values) => with_singles(&values, |values| codec.message(values))?,
            None => Ok(Vec::new()),
        };
        Ok(Self { version, buckets: twins.iter().map(round).collect::<Result<_>>()? })
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.len() as u64).sum()
    }

    /// What workers compute with that have pulled it.
    pub(super) fn values(&self, twins: &[FlatParam], codec: &PushCodec) -> Result<Vec<Vec<f32>>> {
        let decode = |(twin, message): (&FlatParam, &Vec<u8>)| {
            let mut values = vec![0.0; if twin.trainable() { twin.owned().len() } else { 0 }];
            if !values.is_empty() {
                codec.decode(message, &mut values)?;
            }
            Ok(values)
        };
        twins.iter().zip(&self.buckets).map(decode).collect()
    }
}

/// Encodes and sends what a worker pushes, beside the thread that trains.
#[derive(Debug)]
pub(super) struct Pusher {
    codec: Arc<PushCodec>,
    worker: Worker,
    mail: Communicator,
    places: Places,
}

/// A bucket that was pushed.
#[derive(Debug)]
pub(super) struct Pushed {
    /// Bytes that have travelled.
    pub(super) bytes: u64,
    pub(super) left: Left,
}

impl Pusher {
    /// Of a worker, whose messages go by `mail`; on the thread that trains if nothing is to run beside it.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub(super) fn start(
        codec: Arc<PushCodec>,
        overlap: Overlap,
        (mail, places): (Communicator, Places),
    ) -> Result<Self> {
        let worker = Worker::start("pushes", overlap != Overlap::Never)?;
        Ok(Self { codec, worker, mail, places })
    }

    /// Sends a bucket's gradients of an attempt to the servers that have its elements. They must not change until it is done.
    pub(super) fn push(&self, attempt: u64, bucket: usize, gradients: FlatStorage) -> Pending<Pushed> {
        let (codec, mail, places) = (self.codec.clone(), self.mail.clone(), self.places);
        self.worker.run(move || {
            let gradients = with_singles(&gradients, |gradients| gradients.to_vec())?;
            let parts: Vec<_> =
                (0..places.servers).map(|server| range(gradients.len(), server, places.servers)).collect();
            let Encoded { messages, left } = codec.encode((bucket, mail.rank()), gradients, &parts)?;
            let mut bytes = 0;
            for (server, message) in messages.iter().enumerate() {
                let about = (Kind::PushCoded, attempt, bucket);
                bytes += Message::send_coded(&mail, places.rank_of(server), TO_SERVER, about, message)?;
            }
            Ok(Pushed { bytes, left })
        })
    }

    /// What is left out of a step that has counted is kept for the next.
    pub(super) fn keep(&self, left: Vec<Left>) {
        left.into_iter().for_each(|left| self.codec.keep(left));
    }

    /// What is kept.
    pub(super) fn state(&self) -> CodecState {
        self.codec.state()
    }

    /// Takes over what was kept.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if it is another codec's.
    pub(super) fn load_state(&self, state: CodecState) -> Result<()> {
        self.codec.load_state(state)
    }
}
