//! The layers of encoder and decoder.

use phalanx_tensor::nn::{LayerNorm, Linear};
use phalanx_tensor::ops::{AttentionMask, AttentionOptions};
use phalanx_tensor::{Block, Init, Result, Scope, Tape, TensorError, Value, ops};

use super::attention::Attention;
use super::config::{TranslationConfig, TranslationLayout};
use crate::FeedForwardActivation;
use crate::cache::LayerCache;

/// A side of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Encoder,
    Decoder,
}

/// The names of the parts of a layer: the attention to the other side, the norms in the order of the parts, and the two
/// linear layers.
struct PartNames {
    cross: &'static str,
    norms: [&'static str; 3],
    linear: [&'static str; 2],
}

impl PartNames {
    fn of(layout: TranslationLayout, side: Side) -> Self {
        match (layout, side) {
            (TranslationLayout::Marian, _) => Self {
                cross: "encoder_attn",
                norms: ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"],
                linear: ["fc1", "fc2"],
            },
            (TranslationLayout::Torch, Side::Encoder) => {
                Self { cross: "", norms: ["norm1", "", "norm2"], linear: ["linear1", "linear2"] }
            }
            (TranslationLayout::Torch, Side::Decoder) => Self {
                cross: "multihead_attn",
                norms: ["norm1", "norm2", "norm3"],
                linear: ["linear1", "linear2"],
            },
        }
    }
}

/// A layer: self-attention, in decoders attention to the encoder's states, and a feed-forward part. Each is added to its
/// input, with a norm behind the sum or in front of the part.
#[derive(Debug)]
pub(super) struct Layer {
    name: String,
    attention: Attention,
    attention_norm: LayerNorm,
    cross: Option<(Attention, LayerNorm)>,
    fc1: Linear,
    fc2: Linear,
    final_norm: LayerNorm,
    activation: FeedForwardActivation,
    pre_norm: bool,
    dropout: f64,
    heads: usize,
}

/// The states and lengths of the source, or what is kept of them for a decoder's layer.
pub(super) struct Source<'a> {
    /// Keys and values of the layer, if they are kept.
    pub(super) kept: Option<&'a [Value; 2]>,
    /// The states [N, S, C] otherwise.
    pub(super) states: Option<&'a Value>,
    /// The length of each text `[N]`, u32.
    pub(super) lengths: &'a Value,
}

impl Layer {
    pub(super) fn new(scope: &Scope, config: &TranslationConfig, side: Side) -> Result<Self> {
        let scope = scope.block();
        let TranslationConfig { width, layout, .. } = *config;
        let (heads, inner) = match side {
            Side::Encoder => (config.encoder_heads, config.encoder_inner),
            Side::Decoder => (config.decoder_heads, config.decoder_inner),
        };
        let init = Init::Normal { mean: 0.0, std: config.init_std };
        let names = PartNames::of(layout, side);
        let norm = |name: &str| LayerNorm::new(&scope.pp(name), width, 1e-5);
        let attention = |name: &str| Attention::new(&scope.pp(name), layout, width, heads, init);
        let linear = |name: &str, inputs, outputs| {
            Linear::with_init(&scope.pp(name), inputs, outputs, init, Some(Init::ZEROS))
        };
        let cross = match side {
            Side::Encoder => None,
            Side::Decoder => Some((attention(names.cross)?, norm(names.norms[1])?)),
        };
        Ok(Self {
            name: scope.block_name().to_owned(),
            attention: attention("self_attn")?,
            attention_norm: norm(names.norms[0])?,
            cross,
            fc1: linear(names.linear[0], width, inner)?,
            fc2: linear(names.linear[1], inner, width)?,
            final_norm: norm(names.norms[2])?,
            activation: config.activation,
            pre_norm: config.pre_norm,
            dropout: config.dropout,
            heads,
        })
    }

    /// Computes keys and values of the source for a decoder's layer.
    pub(super) fn keep_source(&self, tape: &Tape, states: &Value) -> Result<[Value; 2]> {
        match &self.cross {
            Some((cross, _)) => cross.keys_and_values(tape, states),
            None => Err(TensorError::Backward("a layer of an encoder sees one side only".into())),
        }
    }

    /// Computes a layer of the encoder: states [N, S, C] that see those within the lengths `[N]`.
    fn encode(&self, tape: &Tape, x: &Value, lengths: &Value) -> Result<Value> {
        let mask = AttentionMask { lengths: Some(lengths.array()?), ..AttentionMask::default() };
        let options = AttentionOptions { mask, dropout: self.dropout, heads: self.heads };
        let x = self.add(tape, x, &self.attention_norm, |x| self.attention.forward(tape, x, x, &options))?;
        self.feed_forward(tape, &x)
    }

    /// Computes a layer of the decoder: states [N, T, C] that see earlier ones, those of the cache too, and the source.
    pub(super) fn decode(
        &self,
        tape: &Tape,
        x: &Value,
        source: &Source<'_>,
        mut cache: Option<&mut LayerCache>,
    ) -> Result<Value> {
        let causal = AttentionMask { causal: true, ..AttentionMask::default() };
        let options = AttentionOptions { mask: causal, dropout: self.dropout, heads: self.heads };
        let x = self.add(tape, x, &self.attention_norm, |x| {
            let new = self.attention.keys_and_values(tape, x)?;
            let [keys, values] = match &mut cache {
                Some(cache) => cache.extend(tape, &new[0], &new[1])?,
                None => new,
            };
            self.attention.attend(tape, x, [&keys, &values], &options)
        })?;
        let Some((cross, norm)) = &self.cross else {
            return Err(TensorError::Backward("a layer of an encoder sees one side only".into()));
        };
        let mask = AttentionMask { lengths: Some(source.lengths.array()?), ..AttentionMask::default() };
        let options = AttentionOptions { mask, dropout: self.dropout, heads: self.heads };
        let x = self.add(tape, &x, norm, |x| match (source.kept, source.states) {
            (Some([keys, values]), _) => cross.attend(tape, x, [keys, values], &options),
            (None, Some(states)) => cross.forward(tape, x, states, &options),
            (None, None) => Err(TensorError::Backward("a decoder without a source".into())),
        })?;
        self.feed_forward(tape, &x)
    }

    fn feed_forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        self.add(tape, x, &self.final_norm, |x| {
            let hidden = self.fc1.forward(tape, x)?;
            let hidden = self.activation.apply(tape, &hidden)?;
            self.fc2.forward(tape, &hidden)
        })
    }

    /// Adds what a part makes of its input, with the norm at its place.
    fn add(
        &self,
        tape: &Tape,
        x: &Value,
        norm: &LayerNorm,
        part: impl FnOnce(&Value) -> Result<Value>,
    ) -> Result<Value> {
        let out = match self.pre_norm {
            true => part(&norm.forward(tape, x)?)?,
            false => part(x)?,
        };
        let sum = ops::add(tape, x, &ops::dropout(tape, &out, self.dropout)?)?;
        if self.pre_norm { Ok(sum) } else { norm.forward(tape, &sum) }
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    /// In an encoder, takes states [N, S, C] and lengths `[N]`; in a decoder, states [N, T, C], and states and lengths of the
    /// source.
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        match inputs {
            [x, lengths] => Ok(vec![self.encode(tape, x, lengths)?]),
            [x, states, lengths] => {
                let source = Source { kept: None, states: Some(states), lengths };
                Ok(vec![self.decode(tape, x, &source, None)?])
            }
            _ => Err(TensorError::Backward(format!("a layer takes 2 or 3 values, not {}", inputs.len()))),
        }
    }
}
