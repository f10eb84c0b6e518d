//! Captions as token ids, and the text encoder that reads them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use candle_core::{Device, Tensor};
use phalanx_data::ClipTokenizer;
use phalanx_models::clip::{is_text_weight, openai_names};
use phalanx_models::{ClipTextConfig, ClipTextEncoder};
use phalanx_tensor::io::WeightFile;
use phalanx_tensor::{Param, ParamStore, Scope, TensorError};

use phalanx_config::Relations;
use phalanx_trainer::engine::{CaptionWord, Setup, StepInput, TrainError};

phalanx_config::settings! {
    /// The settings of a text encoder.
    pub(super) struct TextSettings {
        /// Text encoder: width of the feature of a text; for `clip` that of the images as well.
        embed: usize = 64;
        /// Text encoder: width of the transformer.
        text_width: usize = 64;
        /// Text encoder: number of layers.
        text_layers: usize = 2;
        /// Text encoder: number of attention heads.
        text_heads: usize = 4;
        /// Text encoder: tokens attend to earlier ones only, as in CLIP; otherwise to all, so that each knows what follows.
        text_causal: bool = true;
        /// Text encoder: different tokens, the most frequent of CLIP's 49408; at least 514.
        text_vocab: usize = 4096;
        /// Text encoder: tokens in a caption, begin and end marks counted.
        text_context: usize = 32;
        /// File with CLIP text weights (safetensors or torch.save, openai's or Hugging Face's names); empty = train from scratch.
        text_weights: String = String::new();
    }
}

impl TextSettings {
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        relations.positive("model.embed", self.embed as u64);
        relations.positive("model.text_width", self.text_width as u64);
        relations.positive("model.text_layers", self.text_layers as u64);
        relations.positive("model.text_heads", self.text_heads as u64);
        let (width, heads) = (self.text_width, self.text_heads.max(1));
        relations.require(
            width.is_multiple_of(heads),
            "model.text_width",
            format!("model.text_width {width} is not a multiple of model.text_heads {heads}"),
        );
        relations.require(
            self.text_causal || self.text_weights.is_empty(),
            "model.text_causal",
            "model.text_causal = false does not go with model.text_weights: CLIP's encoder is causal"
                .to_owned(),
        );
        relations.require(
            (514..=49408).contains(&self.text_vocab),
            "model.text_vocab",
            format!("model.text_vocab {} is not in 514..=49408", self.text_vocab),
        );
        relations.require(
            self.text_context >= 4,
            "model.text_context",
            format!("model.text_context {} is not at least 4", self.text_context),
        );
    }
}

/// The number of captions kept as token ids; a data set's captions are few and repeat.
const KEPT: usize = 1 << 16;

/// Turns captions into token ids for the text encoder.
pub(super) struct Texts {
    tokenizer: ClipTokenizer,
    config: ClipTextConfig,
    weights: String,
    known: Mutex<BTreeMap<String, Vec<u32>>>,
    /// True once a caption was cut off, which is told once.
    has_cut: AtomicBool,
    /// The warning about it, until a step tells it.
    warning: Mutex<Option<String>>,
}

impl Texts {
    pub(super) fn new(settings: &TextSettings) -> Result<Self, TrainError> {
        let tokenizer = ClipTokenizer::with_vocab(settings.text_vocab)?;
        let config = ClipTextConfig {
            context: settings.text_context,
            vocab: tokenizer.vocab(),
            width: settings.text_width,
            heads: settings.text_heads,
            layers: settings.text_layers,
            embed: settings.embed,
            causal: settings.text_causal,
        };
        Ok(Self {
            tokenizer,
            config,
            weights: settings.text_weights.clone(),
            known: Mutex::default(),
            has_cut: AtomicBool::new(false),
            warning: Mutex::default(),
        })
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

    /// Registers the text encoder as a network of this name that is not learnt, with the configured weights.
    pub(super) fn register_frozen(
        &self,
        setup: &mut Setup<'_>,
        name: &str,
    ) -> Result<ClipTextEncoder, TrainError> {
        let prefix = format!("{name}.");
        setup.frozen_network_from(
            name,
            |store| self.load_weights(store, &prefix),
            |scope| ClipTextEncoder::new(scope, &self.config),
        )
    }

    /// Registers one of several networks, as [`Texts::register`] does the only one.
    pub(super) fn register_network<N>(
        &self,
        setup: &mut Setup<'_>,
        name: &str,
        prefix: &str,
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        match self.weights.is_empty() {
            true => setup.network(name, build),
            false => setup.network_from(name, |store| self.load_weights(store, prefix), build),
        }
    }

    /// The tokenizer of captions.
    pub(super) fn tokenizer(&self) -> &ClipTokenizer {
        &self.tokenizer
    }

    /// The text encoder's settings.
    pub(super) fn encoder(&self) -> &ClipTextConfig {
        &self.config
    }

    /// Token ids of a caption. One that is too long for the context is cut off at its end, with a warning at the first.
    fn ids(&self, caption: &str) -> Vec<u32> {
        let context = self.config.context;
        match self.tokenizer.encode(caption, context) {
            Ok(ids) => ids,
            Err(error) => {
                if !self.has_cut.swap(true, Ordering::Relaxed) {
                    let problem = format!(
                        "{error}; the end of such captions is cut off (model.text_context = {context})"
                    );
                    tracing::warn!("{problem}");
                    *self.warning.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
                }
                self.tokenizer.encode_truncated(caption, context)
            }
        }
    }

    /// Token ids `[N, context]` of captions.
    pub(super) fn encode(&self, captions: &[String]) -> Result<Tensor, TrainError> {
        let context = self.config.context;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ids: Vec<u32> = Vec::with_capacity(captions.len() * context);
        for caption in captions {
            if !known.contains_key(caption) {
                if known.len() >= KEPT {
                    known.clear();
                }
                known.insert(caption.clone(), self.ids(caption));
            }
            ids.extend(known.get(caption).into_iter().flatten());
        }
        Ok(Tensor::from_vec(ids, (captions.len(), context), &Device::Cpu)?)
    }

    /// Returns the words of a caption, and the marks at its ends, with their tokens. The last one has the padding.
    pub(super) fn words(&self, caption: &str) -> Vec<CaptionWord> {
        let last = self.config.context - 1;
        let mut words = vec![CaptionWord { text: "(begin)".to_owned(), tokens: 0..1 }];
        let mut at = 1;
        for word in caption.split_whitespace() {
            let end = (at + self.tokenizer.tokenize(word).len()).min(last);
            words.push(CaptionWord { text: word.to_owned(), tokens: at..end });
            at = end;
        }
        words.push(CaptionWord { text: "(end)".to_owned(), tokens: at..last + 1 });
        words
    }

    /// Tells the user in a step of training that captions are cut off, if one was.
    pub(super) fn warn(&self, step: &StepInput<'_>) {
        if let Some(problem) = self.warning.lock().unwrap_or_else(PoisonError::into_inner).take() {
            step.warn(problem);
        }
    }

    /// Loads the configured weights into the encoder whose parameters' names begin with `prefix`.
    fn load_weights(&self, store: &ParamStore, prefix: &str) -> Result<(), TrainError> {
        let path = Path::new(&self.weights);
        let problem =
            |problem: String| TrainError::Setup(format!("model.text_weights {}: {problem}", path.display()));
        let of_key = |error: TensorError| TrainError::Setup(format!("model.text_weights: {error}"));
        let file = WeightFile::open(path).map_err(of_key)?;
        let found = file.state_dict(is_text_weight).map_err(of_key)?;
        let tensors = found.read_all(is_text_weight).map_err(of_key)?;
        let named = openai_names(tensors).map_err(|error| problem(error.to_string()))?;
        let named: Vec<_> =
            named.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect();
        let of_encoder = |name: &&str| {
            let rest = name.strip_prefix(prefix);
            rest.is_some_and(|rest| !rest.starts_with("visual.") && rest != "logit_scale")
        };
        let wanted = store.params().iter().map(Param::name).filter(of_encoder);
        let missing: Vec<&str> =
            wanted.filter(|name| !named.iter().any(|(known, _)| known == name)).collect();
        if let Some(first) = missing.first() {
            let (first, others) = (&first[prefix.len()..], missing.len() - 1);
            return Err(problem(format!(
                "it lacks `{first}` and {others} others of this text encoder; it holds {}",
                found.content()
            )));
        }
        let report = store.load_state_dict(named.iter().map(|(name, tensor)| (name.as_str(), tensor)));
        let report = report.map_err(|error| {
            problem(format!("{error}; model.text_width, model.text_vocab, model.text_context and model.embed must be those of the weights"))
        })?;
        match report.unexpected.first() {
            Some(name) => Err(problem(format!(
                "`{name}` is not in this text encoder; model.text_layers may be too few"
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use phalanx_data::scenes::{SceneSpec, ScenesConfig, ScenesDataset};
    use phalanx_data::{ShapeSpec, ShapesConfig, ShapesDataset};
    use phalanx_tensor::io::save_safetensors;
    use phalanx_tensor::{BuildOptions, Key, StoreBuilder};

    use super::*;
    use crate::tasks::presets::PRESETS;

    fn store(texts: &Texts, seed: u64) -> ParamStore {
        let builder = StoreBuilder::new(BuildOptions { key: Key::new(seed), ..BuildOptions::default() });
        ClipTextEncoder::new(&builder.root().pp("text"), &texts.config).expect("new names");
        builder.build().expect("small")
    }

    /// The default of `model.text_vocab`, which the presets of the tests have.
    const VOCAB: usize = 4096;

    /// Checks that captions have at most this many tokens of a vocabulary.
    fn assert_fit(captions: impl Iterator<Item = String>, vocab: usize, context: usize) {
        let tokenizer = ClipTokenizer::with_vocab(vocab).expect("in range");
        for caption in captions {
            tokenizer.encode(&caption, context).unwrap_or_else(|error| panic!("{caption}: {error}"));
        }
    }

    /// The tokens of a caption in a preset.
    fn context_of(preset: &str) -> usize {
        let (_, preset) = PRESETS.iter().find(|(name, _)| *name == preset).expect("a preset");
        let context = preset.lines().find_map(|line| line.strip_prefix("text_context = ")).expect("a key");
        context.parse().expect("a number")
    }

    #[test]
    fn captions_of_scenes_fit_their_context() {
        let len = 3000;
        let scenes = ScenesDataset::new(ScenesConfig { len, ..ScenesConfig::default() }).expect("sound");
        let specs: Vec<SceneSpec> = (0..len).map(|index| scenes.spec(index).expect("in range")).collect();
        let stating = |spec: &SceneSpec| -> Vec<String> {
            (0..SceneSpec::NUM_WORDINGS).map(|wording| spec.caption(wording)).collect()
        };
        // As docs/diffusion.md says of captions that state relations.
        let preset = context_of("scenes-diffusion");
        for (vocab, relations, places) in [(VOCAB, 40, preset), (8192, 40, 40), (16384, 36, 36)] {
            assert_fit(specs.iter().flat_map(stating), vocab, relations);
            assert_fit(specs.iter().map(SceneSpec::placed_caption), vocab, places);
            assert_fit(specs.iter().map(SceneSpec::partly_placed_caption), vocab, places);
        }
    }

    #[test]
    fn captions_of_shapes_fit_the_context_of_their_preset() {
        let shapes =
            ShapesDataset::new(ShapesConfig { len: 3000, ..ShapesConfig::default() }).expect("sound");
        let captions = |index: usize| {
            let spec = shapes.spec(index).expect("in range");
            (0..ShapeSpec::NUM_WORDINGS).map(move |wording| spec.caption(wording))
        };
        assert_fit((0..3000).flat_map(captions), VOCAB, context_of("shapes-diffusion"));
    }

    #[test]
    fn weights_are_read_with_wrappers_and_further_tensors_and_errors_name_keys_that_exist() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("clip.safetensors");
        let (text_width, text_layers, text_heads, text_vocab) = (8, 1, 2, 514);
        let settings = TextSettings {
            embed: 4,
            text_width,
            text_layers,
            text_heads,
            text_causal: true,
            text_vocab,
            text_context: 8,
            text_weights: path.display().to_string(),
        };
        let texts = Texts::new(&settings).expect("sound");
        let saved = store(&texts, 1).state_dict().expect("here");
        let renamed =
            saved.iter().map(|(name, tensor)| (name.replacen("text.", "module.", 1), tensor.clone()));
        let mut file: Vec<(String, Tensor)> = renamed.collect();
        let other = |dtype| Tensor::zeros(3, dtype, &Device::Cpu).expect("small");
        file.push(("module.visual.proj".to_owned(), other(DType::F32)));
        file.push(("module.num_steps".to_owned(), other(DType::I64)));
        save_safetensors(&path, &file, &[]).expect("writes");
        let loaded = store(&texts, 2);
        texts.load_weights(&loaded, "text.").expect("fits");
        for ((name, before), (_, after)) in saved.iter().zip(loaded.state_dict().expect("here")) {
            let flat = |tensor: &Tensor| tensor.flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("f32");
            assert_eq!(flat(before), flat(&after), "{name}");
        }
        let said =
            |texts: &Texts| texts.load_weights(&store(texts, 2), "text.").expect_err("refused").to_string();
        let more = TextSettings { text_layers: 2, ..settings.clone() };
        let error = said(&Texts::new(&more).expect("sound"));
        let words = ["model.text_weights ", "it lacks `transformer.resblocks.1.", "it holds", "`module."];
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
        let wider = TextSettings { text_width: 16, ..settings };
        let error = said(&Texts::new(&wider).expect("sound"));
        assert!(error.contains("model.text_width") && !error.contains("settings."), "{error}");
        std::fs::write(&path, "no weights").expect("writes");
        assert!(said(&texts).contains("model.text_weights: "), "{}", said(&texts));
    }
}
