//! Encoded gradients and values between workers and servers, and pushes in the background.

use std::ops::Range;
use std::sync::Arc;

use phalanx_collectives::Communicator;
use phalanx_tensor::{FlatStorage, ParamBucket};

use super::places::{Places, TO_SERVER, range};
use crate::asynchronous::message::{Kind, Message};
use crate::background::{Pending, Worker};
use crate::{Options, Result, ShardingError};
use phalanx_codecs::buffer::with_singles;
use phalanx_codecs::{CodecState, EncodedBucket, PushCodec, ResidualUpdate, WeightRounding, nothing_kept};

/// The codecs of pushed gradients and pulled values, if they are encoded.
#[derive(Debug, Clone, Default)]
pub(super) struct Encoding {
    pub(super) gradients: Option<Arc<PushCodec>>,
    pub(super) values: Option<Arc<PushCodec>>,
}

impl Encoding {
    /// Returns the encoding that the options choose.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if parameters share a scale in chunks of none.
    pub(super) fn of(options: &Options) -> Result<Self> {
        let gradients = options.codec.as_ref().and_then(|codec| codec.push()).map(Arc::new);
        let values = options.weights.map(WeightRounding::codec).transpose()?.map(Arc::new);
        Ok(Self { gradients, values })
    }

    /// Returns the `len` values of a message.
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
pub(super) struct RoundedValues {
    pub(super) version: u64,
    /// The messages by bucket; empty for frozen buckets.
    pub(super) buckets: Vec<Vec<u8>>,
}

impl RoundedValues {
    /// Rounds a server's values.
    pub(super) fn of(server_params: &[ParamBucket], version: u64, codec: &PushCodec) -> Result<Self> {
        let round = |server_param: &ParamBucket| match server_param
            .owned_values()?
            .filter(|_| server_param.trainable())
        {
            Some(values) => with_singles(&values, |values| codec.message(values))?,
            None => Ok(Vec::new()),
        };
        Ok(Self {
            version,
            buckets: server_params.iter().map(round).collect::<Result<_, phalanx_codecs::CodecError>>()?,
        })
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.len() as u64).sum()
    }

    /// Returns the decoded values that workers compute with.
    pub(super) fn values(&self, server_params: &[ParamBucket], codec: &PushCodec) -> Result<Vec<Vec<f32>>> {
        let decode = |(server_param, message): (&ParamBucket, &Vec<u8>)| {
            let mut values = vec![0.0; if server_param.trainable() { server_param.owned().len() } else { 0 }];
            if !values.is_empty() {
                codec.decode(message, &mut values)?;
            }
            Ok(values)
        };
        server_params.iter().zip(&self.buckets).map(decode).collect()
    }
}

/// Sends a worker's pushes on a background thread: encoded gradients, and gradients of a device, which its copy stream brings
/// to the host.
#[derive(Debug)]
pub(super) struct Pusher {
    codec: Option<Arc<PushCodec>>,
    worker: Worker,
    mail: Communicator,
    places: Places,
}

/// The result of the push of a bucket.
#[derive(Debug)]
pub(super) struct PushedBucket {
    /// Bytes sent.
    pub(super) bytes: u64,
    /// The new residual of the codec, if there is one.
    pub(super) left: Option<ResidualUpdate>,
}

impl Pusher {
    /// Starts the pushes of a worker, whose messages go by `mail`; on the thread that trains unless `background` is set.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub(super) fn start(
        codec: Option<Arc<PushCodec>>,
        background: bool,
        (mail, places): (Communicator, Places),
    ) -> Result<Self> {
        let worker = Worker::start("pushes", background)?;
        Ok(Self { codec, worker, mail, places })
    }

    /// Sends a bucket's gradients of an attempt to the servers that have its elements, of which some have `used` the step already.
    /// They must not change until it is done.
    ///
    /// # Errors
    /// If the gradients are on a device and cannot be copied to the host.
    pub(super) fn push(
        &self,
        (attempt, bucket): (u64, usize),
        gradients: &FlatStorage,
        used: Vec<bool>,
    ) -> Result<Pending<PushedBucket>> {
        let (codec, mail, places) = (self.codec.clone(), self.mail.clone(), self.places);
        let coming = gradients.begin_download()?;
        Ok(self.worker.run(move || {
            let gradients = FlatStorage::new(coming.wait()?)?;
            let parts: Vec<_> =
                (0..places.servers).map(|server| range(gradients.len(), server, places.servers)).collect();
            let Some(codec) = codec else {
                let bytes = with_singles(&gradients, |gradients| {
                    let to = |(server, part)| {
                        let about = (Kind::Push, attempt, bucket);
                        let gradients: &[f32] = &gradients[Range::clone(part)];
                        Message::send_values(&mail, places.rank_of(server), TO_SERVER, about, gradients)
                    };
                    parts.iter().enumerate().map(to).sum::<Result<u64>>()
                })??;
                return Ok(PushedBucket { bytes, left: None });
            };
            let gradients = with_singles(&gradients, |gradients| gradients.to_vec())?;
            let EncodedBucket { messages, left } =
                codec.encode((bucket, mail.rank()), gradients, &parts, &used)?;
            let mut bytes = 0;
            for (server, message) in messages.iter().enumerate() {
                let about = (Kind::PushCoded, attempt, bucket);
                bytes += Message::send_coded(&mail, places.rank_of(server), TO_SERVER, about, message)?;
            }
            Ok(PushedBucket { bytes, left: Some(left) })
        }))
    }

    /// Keeps the residuals of a step that was used.
    pub(super) fn keep(&self, left: Vec<ResidualUpdate>) {
        if let Some(codec) = &self.codec {
            left.into_iter().for_each(|left| codec.keep(left));
        }
    }

    /// Returns the codec's state.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn state(&self) -> Result<CodecState> {
        self.codec.as_ref().map_or_else(|| Ok(CodecState::default()), |codec| Ok(codec.state()?))
    }

    /// Returns the bytes of the residuals.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.codec.as_ref().map_or(0, |codec| codec.kept_bytes())
    }

    /// Returns the codec's state with these residuals.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn state_with(&self, left: &[ResidualUpdate]) -> Result<CodecState> {
        self.codec.as_ref().map_or_else(|| Ok(CodecState::default()), |codec| Ok(codec.state_with(left)?))
    }

    /// Keeps the residuals of a step for the parts of the servers that have `used` it.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if it is another codec's.
    pub(super) fn load_used(&self, state: CodecState, used: &[bool]) -> Result<()> {
        let parts = |len: usize| {
            let of = used.iter().enumerate().filter(|(_, used)| **used);
            of.map(|(server, _)| range(len, server, used.len())).collect()
        };
        match &self.codec {
            Some(codec) => Ok(codec.load_parts(state, parts)?),
            None => Ok(nothing_kept("none", &state)?),
        }
    }

    /// Restores saved residuals.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if it is another codec's.
    pub(super) fn load_state(&self, state: CodecState) -> Result<()> {
        match &self.codec {
            Some(codec) => Ok(codec.load_state(state)?),
            None => Ok(nothing_kept("none", &state)?),
        }
    }
}
