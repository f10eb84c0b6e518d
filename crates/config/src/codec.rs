//! The section `[codec]`: the encoding of gradients and parameters between ranks.

use phalanx_sharding::{CodecKind, CodecSettings, CodecWhen, ShardingError, Strategy, WeightRounding};
use phalanx_tensor::Precision;

use super::keys::{CodecConfig, Config, OptimKind, WeightCodec};
use super::validate::Relations;

impl CodecConfig {
    /// Returns the codec settings of a network. Random numbers depend on the run's seed and the network's name.
    pub fn settings(&self, seed: u64, network: &str) -> CodecSettings {
        let seed =
            network.bytes().fold(seed, |seed, byte| seed.wrapping_mul(257).wrapping_add(u64::from(byte)));
        CodecSettings {
            kind: self.kind,
            density: self.density,
            rank: self.rank,
            chunk: self.chunk,
            momentum: self.momentum,
            warm_up: self.warmup_steps,
            seed,
        }
    }

    /// Returns the rounding of parameters that are gathered or pulled, if any.
    pub fn weight_rounding(&self) -> Option<WeightRounding> {
        match self.weights {
            WeightCodec::None => None,
            WeightCodec::Bf16 => Some(WeightRounding::Bf16),
            WeightCodec::Int8 => Some(WeightRounding::Int8 { chunk: self.chunk }),
        }
    }

    /// Describes the codec and its parameters.
    pub fn describe(&self) -> String {
        let Self { kind, density, rank, chunk, momentum, scope, when, .. } = self;
        let of_kind = match kind {
            CodecKind::None => String::new(),
            CodecKind::Bf16 | CodecKind::Lossless => String::new(),
            CodecKind::Int8 | CodecKind::Int4 | CodecKind::Qsgd | CodecKind::Sign => {
                format!(", chunks of {chunk}")
            }
            CodecKind::TopK | CodecKind::RandomK => format!(", density {density}"),
            CodecKind::TopKInt8 => format!(", density {density}, chunks of {chunk}"),
            CodecKind::Dgc => format!(", density {density}, momentum {momentum}"),
            CodecKind::PowerSgd => format!(", rank {rank}"),
        };
        let used =
            if *kind == CodecKind::None { String::new() } else { format!(", scope {scope}, when {when}") };
        let weights = match self.weights {
            WeightCodec::None => String::new(),
            WeightCodec::Bf16 => "; gathered or pulled parameters bf16".to_owned(),
            WeightCodec::Int8 => format!("; gathered or pulled parameters int8, chunks of {chunk}"),
        };
        format!("{kind}{of_kind}{used}{weights}")
    }
}

impl Config {
    /// Checks the codec against the strategy and the precision.
    pub(super) fn check_codec(&self, relations: &mut Relations<'_>, strategy: &Strategy) {
        let Self { codec, train, .. } = self;
        let made = codec.settings(0, "").codec().map_err(ShardingError::from);
        let suits =
            made.and_then(|made| made.map_or(Ok(()), |made| strategy.encodes_by(&*made, codec.scope)));
        if let Err(error) = suits {
            relations.require(false, "codec.kind", format!("codec.kind = {}: {error}", codec.kind));
        }
        relations.require(
            codec.weights == WeightCodec::None || strategy.moves_parameters().is_ok(),
            "codec.weights",
            format!(
                "codec.weights = {} needs parameters that are gathered, as fsdp and hsdp do, or pulled, as ps-bsp, ps-ssp and ps-asp do, \
                 not {strategy}",
                codec.weights.as_str()
            ),
        );
        relations.require(
            codec.weights != WeightCodec::Int8 || codec.chunk > 0,
            "codec.chunk",
            "codec.chunk = 0: parameters that share a scale are at least 1".to_owned(),
        );
        // Errors that are sent in later steps must have the loss scale of those steps.
        relations.require(
            !codec.kind.feeds_back() || train.precision != Precision::F16 || train.loss_scale > 0.0,
            "codec.kind",
            format!(
                "codec.kind = {} adds what earlier steps left out, and train.precision = f16 scales every step as it finds; \
                 take bf16, or a fixed train.loss_scale",
                codec.kind
            ),
        );
        if codec.kind != CodecKind::Dgc {
            return;
        }
        relations.require(
            codec.when == CodecWhen::Always,
            "codec.when",
            "codec.kind = dgc is the optimizer's momentum too, and cannot be off by itself; set codec.when = always".to_owned(),
        );
        let names = self.networks.keys().map(String::as_str).chain([""]);
        for optim in names.map(|name| self.for_network(name).optim) {
            relations.require(
                optim.kind == OptimKind::Sgd && (optim.momentum == 0.0 || codec.momentum == 0.0),
                "codec.kind",
                format!(
                    "codec.kind = dgc applies codec.momentum = {} before sending, instead of an optimizer with momentum of its own: \
                     it needs optim.kind = sgd with optim.momentum = 0, not {} with {}",
                    codec.momentum, optim.kind, optim.momentum
                ),
            );
        }
    }
}
