//! Latent images that are kept: the first stage encodes each image once.
//!
//! Each image is encoded alone, so that its latent distribution has the same bits in every pass, on any rank, and in a training that
//! goes on: products over a batch may differ in the last bit with the number of samples. A kept distribution is found by the hash of the
//! image's pixels: an image and its mirror image are two.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Tensor};
use phalanx_batches::SampleHash;
use phalanx_config::Config;
use phalanx_models::diffusion::LatentDistribution;
use phalanx_tensor::{Tape, TensorError, Value, ops};
use phalanx_trainer::engine::{StepInput, TrainError};

use super::DiffusionSettings;

/// The latent distributions of images that this rank has encoded, on the host.
pub(super) struct KeptLatents {
    /// The bytes of all of them at most.
    limit: usize,
    kept: Mutex<Kept>,
}

/// An image as the first stage sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Seen {
    image: SampleHash,
    /// The type of activations: a training in bf16 may be evaluated in f32, and sets of images share some.
    dtype: DType,
}

#[derive(Default)]
struct Kept {
    of: HashMap<Seen, Latent>,
    bytes: usize,
    /// True if an image was not kept, for want of room.
    is_full: bool,
}

/// The latent distribution of an image: mean and log-variance, [1, channels, height, width] each. Clones share the numbers.
#[derive(Clone)]
struct Latent {
    mean: Tensor,
    logvar: Tensor,
}

impl Latent {
    /// Copies the distribution of an image to the host.
    fn read(of: &LatentDistribution) -> Result<Self, TrainError> {
        // Parts of one array would hold all of it.
        Ok(Self {
            mean: of.mean.to_host()?.force_contiguous()?,
            logvar: of.logvar.to_host()?.force_contiguous()?,
        })
    }

    fn bytes(&self) -> usize {
        [&self.mean, &self.logvar].iter().map(|part| part.elem_count() * part.dtype().size_in_bytes()).sum()
    }
}

impl KeptLatents {
    /// None where nothing is to be kept, where ranks need each other to encode, or where steps are recorded, which must be alike.
    pub(super) fn new(settings: &DiffusionSettings, config: &Config) -> Option<Self> {
        let limit = usize::try_from(settings.keep_latents.saturating_mul(1 << 20)).unwrap_or(usize::MAX);
        let may = limit > 0 && config.has_whole_parameters() && !config.train.graphs;
        may.then(|| Self { limit, kept: Mutex::default() })
    }

    /// Returns the latent distributions of a step's images: kept ones, and those of the others by `encode`, which are kept then.
    pub(super) fn distribution(
        &self,
        step: &StepInput<'_>,
        encode: impl Fn(&Value) -> Result<LatentDistribution, TensorError>,
    ) -> Result<LatentDistribution, TrainError> {
        let images = step.value("images")?;
        let hashes = match step.tape.backend().has_numbers() {
            true => step.batch.hashes("images")?,
            false => None,
        };
        let Some(hashes) = hashes else { return Ok(encode(&images)?) };
        let dtype = step.tape.session().precision.dtype();
        let seen: Vec<Seen> = hashes.into_iter().map(|image| Seen { image, dtype }).collect();
        let mut latents = Vec::with_capacity(seen.len());
        let mut made = Vec::new();
        for (at, (seen, known)) in seen.iter().zip(self.find(&seen)).enumerate() {
            let latent = match known {
                Some(latent) => latent,
                None => {
                    let latent = Latent::read(&encode(&ops::narrow(step.tape, &images, 0, at, 1)?)?)?;
                    made.push((*seen, latent.clone()));
                    latent
                }
            };
            latents.push(latent);
        }
        self.keep(step, made);
        join(step.tape, &latents)
    }

    fn find(&self, seen: &[Seen]) -> Vec<Option<Latent>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().map(|seen| kept.of.get(seen).cloned()).collect()
    }

    /// Keeps latents while there is room, and tells once that there is no more.
    fn keep(&self, step: &StepInput<'_>, latents: Vec<(Seen, Latent)>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.add(latents, self.limit) {
            let (images, limit) = (kept.of.len(), self.limit >> 20);
            step.warn(format!(
                "the latent images of {images} images are kept, as many as model.keep_latents = {limit} MiB hold; others are encoded in \
                 every pass"
            ));
        }
    }
}

impl Kept {
    /// Adds latents while there is room for all bytes up to `limit`. Returns true if there was none for the first time.
    fn add(&mut self, latents: Vec<(Seen, Latent)>, limit: usize) -> bool {
        let was_full = self.is_full;
        for (seen, latent) in latents {
            let bytes = latent.bytes();
            if self.bytes + bytes > limit {
                self.is_full = true;
            } else if self.of.insert(seen, latent).is_none() {
                self.bytes += bytes;
            }
        }
        self.is_full && !was_full
    }
}

/// Joins the distributions of images where the tape computes.
fn join(tape: &Tape, latents: &[Latent]) -> Result<LatentDistribution, TrainError> {
    let joined = |part: fn(&Latent) -> &Tensor| -> Result<Value, TrainError> {
        let rows = Tensor::cat(&latents.iter().map(part).collect::<Vec<_>>(), 0)?;
        Ok(Value::constant(tape.session().device.put(&rows)?))
    };
    Ok(LatentDistribution { mean: joined(|latent| &latent.mean)?, logvar: joined(|latent| &latent.logvar)? })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use phalanx_batches::Batch;

    use super::*;

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let latent = || {
            let zeros = Tensor::zeros((1, 2, 3, 3), DType::F32, &Device::Cpu).expect("zeros");
            Latent { mean: zeros.clone(), logvar: zeros }
        };
        let of = phalanx_data::Batch::new(4).with("x", [4, 1], vec![0.0_f32, 1.0, 2.0, 3.0]).expect("sound");
        let hashes = Batch::try_from(of).expect("sound").hashes("x").expect("there").expect("not mixed");
        let seen = |at: &usize| Seen { image: hashes[*at], dtype: DType::F32 };
        let of = |chosen: &[usize]| chosen.iter().map(|at| (seen(at), latent())).collect();
        let (mut kept, each) = (Kept::default(), 2 * 18 * 4);
        assert_eq!(latent().bytes(), each);
        let limit = 3 * each + 1;
        assert!(!kept.add(of(&[0, 1, 0]), limit));
        assert_eq!((kept.of.len(), kept.bytes), (2, 2 * each));
        assert!(kept.add(of(&[2, 3]), limit), "there is no room for the fourth");
        assert!(!kept.add(of(&[3]), limit), "that is told once");
        assert_eq!((kept.of.len(), kept.bytes), (3, 3 * each));
    }
}
