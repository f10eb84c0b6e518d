//! Captions as token ids, and the text encoder that reads them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use phalanx_data::ClipTokenizer;
use phalanx_models::ClipTextConfig;
use phalanx_models::clip::openai_names;
use phalanx_tensor::io::load_weights;
use phalanx_tensor::{Param, ParamStore, Scope, TensorError};

use crate::config::ModelConfig;
use crate::engine::TrainError;
use crate::engine::training::Setup;

/// How many captions are kept as ids; a data set's captions are few and come again and again.
const KEPT: usize = 1 << 16;

/// Turns captions into token ids for the text encoder.
pub(super) struct Texts {
    tokenizer: ClipTokenizer,
    config: ClipTextConfig,
    weights: String,
    known: RefCell<BTreeMap<String, Vec<u32>>>,
}

impl Texts {
    pub(super) fn new(model: &ModelConfig) -> Result<Self, TrainError> {
        let tokenizer = ClipTokenizer::with_vocab(model.text_vocab)?;
        let config = ClipTextConfig {
            context: model.text_context,
            vocab: tokenizer.vocab(),
            width: model.text_width,
            heads: model.text_heads,
            layers: model.text_layers,
            embed: model.embed,
        };
        Ok(Self { tokenizer, config, weights: model.text_weights.clone(), known: RefCell::default() })
    }

    /// Registers a model with the text encoder in it, the names of whose parameters begin with `prefix`, and has the
    /// configured weights read into that, if there are any.
    pub(super) fn register<N>(
        &self,
        setup: &mut Setup<'_>,
        prefix: &str,
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        match self.weights.is_empty() {
            true => setup.model(build),
            false => setup.model_from(|store| self.load_weights(store, prefix), build),
        }
    }

    /// The text encoder's settings.
    pub(super) fn encoder(&self) -> &ClipTextConfig {
        &self.config
    }

    /// Token ids `[N, context]` of captions. What is too long for the context is cut off at its end.
    pub(super) fn encode(&self, captions: &[String]) -> Result<Tensor, TrainError> {
        let context = self.config.context;
        let mut known = self.known.borrow_mut();
        let mut ids: Vec<u32> = Vec::with_capacity(captions.len() * context);
        for caption in captions {
            if !known.contains_key(caption) {
                if known.len() >= KEPT {
                    known.clear();
                }
                known.insert(caption.clone(), self.tokenizer.encode_truncated(caption, context));
            }
            ids.extend(known.get(caption).into_iter().flatten());
        }
        Ok(Tensor::from_vec(ids, (captions.len(), context), &Device::Cpu)?)
    }

    /// Loads the configured weights into the encoder whose parameters' names begin with `prefix`.
    fn load_weights(&self, store: &ParamStore, prefix: &str) -> Result<(), TrainError> {
        let path = Path::new(&self.weights);
        let named = openai_names(load_weights(path)?)?;
        let named: Vec<_> =
            named.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect();
        let of_encoder = |name: &&str| {
            let rest = name.strip_prefix(prefix);
            rest.is_some_and(|rest| !rest.starts_with("visual.") && rest != "logit_scale")
        };
        let wanted = store.params().iter().map(Param::name).filter(of_encoder);
        let missing: Vec<&str> =
            wanted.filter(|name| !named.iter().any(|(known, _)| known == name)).collect();
        let problem =
            |problem: String| TrainError::Setup(format!("model.text_weights {}: {problem}", path.display()));
        if let Some(first) = missing.first() {
            return Err(problem(format!("{first} and {} others are missing", missing.len() - 1)));
        }
        let report = store.load_state_dict(named.iter().map(|(name, tensor)| (name.as_str(), tensor)));
        let report = report.map_err(|error| {
            problem(format!("{error}; model.text_* and model.embed must be those of the weights"))
        })?;
        match report.unexpected.first() {
            Some(name) => {
                Err(problem(format!("{name} is not in this text encoder; model.text_layers may be too few")))
            }
            None => Ok(()),
        }
    }
}
