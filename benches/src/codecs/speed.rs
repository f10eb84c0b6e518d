//! Bytes, error and speed of each codec on a network's gradients.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use candle_core::{Device, Tensor};
use phalanx_collectives::{Algorithm, threads};
use phalanx_kernels::{Context, compress_lossless};
use phalanx_models::{ResNet, ResNetConfig, ResNetVariant};
use phalanx_sharding::{Bucket, CodecKind, CodecSettings, Peers, SumGroup, SumPlacement};
use phalanx_tensor::loss::{LossDivisor, cross_entropy};
use phalanx_tensor::{BuildOptions, Key, Session, StoreBuilder, Tape, Value};

use super::timing::coding_seconds;

/// A codec's row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) kind: CodecKind,
    /// The compression ratio: bytes that one of four ranks sends without the codec, by the bytes with it.
    pub(super) ratio: f64,
    /// The distance of the sum over two ranks from the exact one, relative to it (L2).
    pub(super) error: f64,
    /// Bytes of f32 a second, on one thread.
    pub(super) encode: f64,
    pub(super) decode: f64,
}

/// The gradients of a ResNet-18 for two batches, as one bucket.
pub(super) struct Gradients {
    bucket: Bucket,
    ranks: [Vec<f32>; 2],
}

impl Gradients {
    pub(super) fn of_resnet() -> Result<Self> {
        let builder = StoreBuilder::new(BuildOptions {
            key: Key::new(1),
            bucket_bytes: usize::MAX,
            ..Default::default()
        });
        let config = ResNetConfig { cifar_stem: true, ..ResNetConfig::new(ResNetVariant::R18, 10) };
        let model = ResNet::new(&builder.root(), &config)?;
        let store = builder.build()?;
        let context = Arc::new(Context::new(1));
        let draw = |rank: u64| {
            let tape = Tape::recording(Session::training(context.clone(), Key::new(2).step(rank)));
            let mut pixels = vec![0.0; 8 * 3 * 32 * 32];
            Key::new(3).step(rank).normal(0, &mut pixels);
            let images =
                Tensor::from_vec(pixels, (8, 3, 32, 32), &Device::Cpu)?.to_dtype(candle_core::DType::F32)?;
            let labels: Vec<u32> = (0..8).map(|at| (at + rank as u32) % 10).collect();
            let logits = model.forward(&tape, &Value::constant(images))?;
            tape.backward(&cross_entropy(&tape, &logits, &labels, 0.0, LossDivisor::Count(16))?)?;
            let mut all = Vec::new();
            for param in store.buckets() {
                let grads = param.grads()?.context("every parameter has a gradient")?;
                all.extend(grads.tensor()?.to_vec1::<f32>()?);
                param.discard_grads();
            }
            Ok::<_, anyhow::Error>(all)
        };
        let ranks = [draw(0)?, draw(1)?];
        let (mut matrices, mut start) = (Vec::new(), 0);
        for param in store.buckets() {
            let own = Bucket::of(0, param);
            matrices.extend(own.matrices.into_iter().map(|mut matrix| {
                matrix.range = start + matrix.range.start..start + matrix.range.end;
                matrix
            }));
            start += own.len;
        }
        Ok(Self { bucket: Bucket { slot: 0, len: start, matrices }, ranks })
    }

    pub(super) fn len(&self) -> usize {
        self.bucket.len
    }

    /// Computes the error of a sum by a codec.
    fn error(&self, settings: &CodecSettings) -> Result<f64> {
        let exact = self.ranks[0].iter().zip(&self.ranks[1]).map(|(a, b)| f64::from(*a) + f64::from(*b));
        let exact: Vec<f64> = exact.collect();
        let sum = std::thread::scope(|scope| {
            let ranks = threads(2)?.into_iter().zip(&self.ranks);
            let running: Vec<_> = ranks
                .map(|(comm, own)| {
                    scope.spawn(move || {
                        let codec = settings.codec()?.context("a codec")?;
                        let mut own = own.clone();
                        codec.reduce(
                            &self.bucket,
                            own.as_mut_slice().into(),
                            SumPlacement::All,
                            &mut Peers::new(&comm, Algorithm::Auto),
                        )?;
                        Ok::<_, anyhow::Error>(own)
                    })
                })
                .collect();
            let mut sums = Vec::new();
            for rank in running {
                match rank.join() {
                    Ok(sum) => sums.push(sum?),
                    Err(_) => bail!("a rank panicked"),
                }
            }
            sums.pop().context("two ranks")
        })?;
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let off = norm(&mut sum.iter().zip(&exact).map(|(a, b)| f64::from(*a) - b));
        Ok(off / norm(&mut exact.iter().copied()))
    }

    pub(super) fn row(&self, settings: &CodecSettings, rounds: u64) -> Result<Row> {
        let codec = settings.codec()?.context("a codec")?;
        let among = SumGroup { rank: 0, ranks: 4, keeps: SumPlacement::All, algorithm: Algorithm::Auto };
        let mut sent = codec.bytes(&self.bucket, &among).sent as f64;
        if settings.kind == CodecKind::Lossless {
            // `bytes` is only an upper bound here, so the sent bytes are scaled by the real size.
            let mut message = Vec::new();
            compress_lossless(&Context::new(1), &self.ranks[0], &mut message);
            sent *= message.len() as f64 / (4 * self.len()) as f64;
        }
        let plain = among.summed(4 * self.len() as u64) as f64;
        let [encode, decode] = coding_seconds(settings, &self.bucket, &self.ranks[0], rounds)?;
        let bytes = 4.0 * self.len() as f64;
        let (ratio, error) = (plain / sent, self.error(settings)?);
        Ok(Row { kind: settings.kind, ratio, error, encode: bytes / encode, decode: bytes / decode })
    }
}
