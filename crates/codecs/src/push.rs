//! Codecs of gradients that a worker pushes to parameter servers. Each server has a part of a bucket.

use std::ops::Range;

use phalanx_kernels::mixed;

use crate::quantisers::Quantiser;
use crate::slice::finite;
use crate::slots::{BucketState, STEP, STEP_BYTES, Slots};
use crate::{CodecBytes, CodecState, Result};

/// The state of a bucket: the error of its messages.
pub(crate) const RESIDUAL: &str = "residual";

/// Encodes the gradients that a worker pushes to servers, each part of a bucket separately. With error feedback (Seide et al.
/// 2014) it keeps the error of the messages. [`GradCodec::push`](crate::GradCodec::push) makes it.
#[derive(Debug)]
pub struct PushCodec {
    quantiser: Box<dyn Quantiser>,
    /// The names of the state that is kept for each bucket.
    fields: &'static [&'static str],
    seed: u64,
    slots: Slots,
}

/// A bucket that was encoded.
#[derive(Debug)]
pub struct EncodedBucket {
    /// The message of each part.
    pub messages: Vec<Vec<u8>>,
    /// The state once the step was used.
    pub left: ResidualUpdate,
}

/// The state of a bucket once the encoded step was used. If this is dropped, the codec's state stays as it was.
#[derive(Debug)]
pub struct ResidualUpdate {
    slot: usize,
    kept: BucketState,
}

impl PushCodec {
    /// Makes a codec with empty state. `fields` names the state of each bucket: [`RESIDUAL`], [`STEP`] or both.
    pub(crate) fn new(
        quantiser: impl Quantiser + 'static,
        fields: &'static [&'static str],
        seed: u64,
    ) -> Self {
        Self::boxed(Box::new(quantiser), fields, seed)
    }

    /// Makes a codec as [`PushCodec::new`] does, with a boxed quantiser.
    pub(crate) fn boxed(quantiser: Box<dyn Quantiser>, fields: &'static [&'static str], seed: u64) -> Self {
        let slots = Slots::new(quantiser.name(), fields);
        Self { quantiser, fields, seed, slots }
    }

    /// The codec's name.
    pub fn name(&self) -> &'static str {
        self.quantiser.name()
    }

    /// True if `field` is part of the state.
    fn keeps(&self, field: &str) -> bool {
        self.fields.contains(&field)
    }

    /// Encodes the parts of a bucket's gradients, plus the residual of earlier messages. With error feedback, gradients
    /// that are not finite are sent as NaN and leave the state as it was. Parts that are `used` already are sent as zeros,
    /// and leave their residual as it was.
    ///
    /// # Errors
    /// [`CodecError::Codec`](crate::CodecError::Codec) if the bucket's state has another length.
    pub fn encode(
        &self,
        (slot, rank): (usize, usize),
        mut gradients: Vec<f32>,
        parts: &[Range<usize>],
        used: &[bool],
    ) -> Result<EncodedBucket> {
        let used = |at: usize| used.get(at).is_some_and(|used| *used);
        for (_, part) in parts.iter().enumerate().filter(|(at, _)| used(*at)) {
            gradients[part.clone()].fill(0.0);
        }
        let mut left = ResidualUpdate { slot, kept: self.slots.with(slot, |kept| kept.only(STEP)) };
        let step = if self.keeps(STEP) { left.kept.count() } else { 0 };
        let feeds_back = self.keeps(RESIDUAL);
        let sound = !feeds_back || finite(&gradients);
        if feeds_back {
            self.slots.add(slot, RESIDUAL, &mut gradients.as_mut_slice().into())?;
        }
        if !sound {
            gradients.fill(f32::NAN);
        }
        let mut messages = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            let mut message = Vec::with_capacity(self.quantiser.message_len(part.len()));
            let draw = mixed(&[self.seed, slot as u64, step, rank as u64, at as u64]);
            self.quantiser.encode(&gradients[part.clone()], draw, &mut message)?;
            messages.push(message);
        }
        if feeds_back && sound {
            let mut decoded = Vec::new();
            let sent = parts.iter().zip(&messages).enumerate().filter(|(at, _)| !used(*at));
            for (_, (part, message)) in sent {
                decoded.resize(part.len(), 0.0);
                self.quantiser.decode(message, &mut decoded, false)?;
                gradients[part.clone()].iter_mut().zip(&decoded).for_each(|(left, sent)| *left -= sent);
            }
            left.kept.give(RESIDUAL, gradients);
        } else if feeds_back {
            left.kept = self.slots.with(slot, |kept| kept.clone());
        }
        Ok(EncodedBucket { messages, left })
    }

    /// Encodes values without error feedback.
    ///
    /// # Errors
    /// Errors of the kernels.
    pub fn message(&self, values: &[f32]) -> Result<Vec<u8>> {
        let mut message = Vec::with_capacity(self.quantiser.message_len(values.len()));
        self.quantiser.encode(values, self.seed, &mut message)?;
        Ok(message)
    }

    /// Decodes a message to `out`.
    ///
    /// # Errors
    /// [`CodecError::Codec`](crate::CodecError::Codec) and [`CodecError::Kernel`](crate::CodecError::Kernel) if it is not a
    /// message of as many values.
    pub fn decode(&self, message: &[u8], out: &mut [f32]) -> Result<()> {
        self.quantiser.decode(message, out, false)
    }

    /// Replaces the state of a bucket, after the servers have used the step.
    pub fn keep(&self, left: ResidualUpdate) {
        self.slots.with(left.slot, |kept| *kept = left.kept);
    }

    /// Returns the state.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn state(&self) -> Result<CodecState> {
        self.slots.state()
    }

    /// Returns the bytes of the state.
    pub fn kept_bytes(&self) -> u64 {
        self.slots.bytes()
    }

    /// Returns the state as it would be after [`PushCodec::keep`] of these updates.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn state_with(&self, left: &[ResidualUpdate]) -> Result<CodecState> {
        self.slots.state_with(left.iter().map(|left| (left.slot, &left.kept)))
    }

    /// Restores the residuals of some parts from the result of [`PushCodec::state_with`]. `parts` returns the parts of a bucket with
    /// this number of elements.
    ///
    /// # Errors
    /// [`CodecError::Codec`](crate::CodecError::Codec) if it is the state of another codec.
    pub fn load_parts(&self, state: CodecState, parts: impl Fn(usize) -> Vec<Range<usize>>) -> Result<()> {
        self.slots.load_parts(state, RESIDUAL, parts)
    }

    /// Restores the result of [`PushCodec::state`].
    ///
    /// # Errors
    /// [`CodecError::Codec`](crate::CodecError::Codec) if it is the state of another codec.
    pub fn load_state(&self, state: CodecState) -> Result<()> {
        self.slots.load(state)
    }

    /// Returns the bytes of a message of `len` gradients; an upper bound where they depend on the gradients.
    pub fn message_len(&self, len: usize) -> u64 {
        self.quantiser.message_len(len) as u64
    }

    /// Returns the bytes that a bucket in parts of these lengths needs. `sent` counts all parts, also one for the rank
    /// itself. During a step, the new residual is held besides the old one.
    pub fn bytes(&self, parts: impl Iterator<Item = usize>) -> CodecBytes {
        let (len, sent) = parts.fold((0, 0), |(len, sent), part| (len + part, sent + self.message_len(part)));
        let residual = if self.keeps(RESIDUAL) { 4 * len as u64 } else { 0 };
        let count = if self.keeps(STEP) { STEP_BYTES } else { 0 };
        CodecBytes { sent, message: sent + residual, state: residual + count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CodecKind, CodecSettings};

    fn codec(kind: CodecKind) -> Option<PushCodec> {
        let settings = CodecSettings { kind, density: 0.1, chunk: 16, seed: 3, ..CodecSettings::default() };
        settings.codec().expect("sound").and_then(|codec| codec.push())
    }

    /// Numbers of several sizes.
    fn drawn(step: u64) -> Vec<f32> {
        let number = |at| (mixed(&[step, at]) >> 40) as f32 / (1 << 24) as f32 - 0.5;
        (0..101).map(|at| number(at) * number(at + 1000)).collect()
    }

    #[test]
    fn what_is_sent_and_what_is_left_are_what_there_was() {
        let parts = [0..33, 33..33, 33..101];
        for kind in CodecKind::ALL {
            let Some(own) = codec(*kind) else {
                assert!(*kind == CodecKind::None || !kind.pushes(), "{kind}");
                continue;
            };
            assert!(kind.pushes(), "{kind}");
            let other = codec(*kind).expect("as before");
            let (mut given, mut taken) = (vec![0.0_f64; 101], vec![0.0_f64; 101]);
            for step in 0..20 {
                let gradients = drawn(step);
                given.iter_mut().zip(&gradients).for_each(|(sum, g)| *sum += f64::from(*g));
                // A step that does not count is as if it had not been.
                own.encode((4, 1), drawn(step + 100), &parts, &[]).expect("sound");
                let EncodedBucket { messages, left } =
                    own.encode((4, 1), gradients, &parts, &[]).expect("sound");
                let bytes = own.bytes(parts.iter().map(Range::len));
                let sent: u64 = messages.iter().map(|message| message.len() as u64).sum();
                assert!(sent <= bytes.sent && (sent == bytes.sent || *kind == CodecKind::Lossless), "{kind}");
                let mut came = vec![0.0; 101];
                for (part, message) in parts.iter().zip(&messages) {
                    // The decoder has not seen earlier messages.
                    other.decode(message, &mut came[part.clone()]).expect("its own");
                    let cut = &message[..message.len().saturating_sub(1)];
                    let damaged = other.decode(cut, &mut vec![0.0; part.len()]);
                    assert!(damaged.is_err() || message.is_empty(), "{kind}, part {part:?}");
                }
                taken.iter_mut().zip(&came).for_each(|(sum, g)| *sum += f64::from(*g));
                own.keep(left);
                assert_eq!(own.kept_bytes(), bytes.state, "{kind}");
            }
            let left = own.state().expect("on the host").into_iter().find(|(name, _)| name == "4.residual");
            let left = left.map_or_else(|| vec![0.0; 101], |(_, left)| left);
            let norm = |of: &dyn Fn(usize) -> f64| (0..101).map(|at| of(at).powi(2)).sum::<f64>().sqrt();
            let off = norm(&|at| given[at] - taken[at] - f64::from(left[at])) / norm(&|at| given[at]);
            let most = match kind {
                // Nothing of these is made good: the error of a step's rounding, of 20 steps.
                CodecKind::Bf16 => 0.01,
                CodecKind::Int8 => 0.02,
                CodecKind::Int4 | CodecKind::Qsgd => 0.3,
                CodecKind::Lossless => 0.0,
                _ => 1e-5,
            };
            assert!(off <= most, "{kind}: {off}");
        }
    }

    #[test]
    fn what_is_not_finite_arrives_as_such_and_is_not_kept() {
        for kind in CodecKind::ALL.iter().filter(|kind| kind.pushes() && **kind != CodecKind::None) {
            let codec = codec(*kind).expect("pushes");
            let whole = [0..101; 1];
            codec.keep(codec.encode((0, 0), drawn(1), &whole, &[]).expect("sound").left);
            let residual = |codec: &PushCodec| {
                codec
                    .state()
                    .expect("on the host")
                    .into_iter()
                    .find(|(name, _)| name.ends_with(RESIDUAL))
                    .map(|(_, kept)| kept)
            };
            let before = residual(&codec);
            let mut gradients = drawn(2);
            gradients[7] = f32::INFINITY;
            let EncodedBucket { messages, left } =
                codec.encode((0, 0), gradients, &whole, &[]).expect("sound");
            let mut came = vec![0.0; 101];
            codec.decode(&messages[0], &mut came).expect("its own");
            assert!(!finite(&came), "{kind}");
            codec.keep(left);
            assert_eq!(residual(&codec), before, "{kind}");
        }
    }
}
