//! Decoders of the family of Llama.

use phalanx_config::{Config, Relations};
use phalanx_models::{Decoder, DecoderConfig, ExpertsConfig, RotaryConfig, RotaryScaling};
use phalanx_trainer::engine::{Setup, TaskSpec, TextLength, TrainError, Training, TransformersModels};

use super::settings::{LanguageSettings, TextKeys, keeping_files};
use super::text::{TextSettings, Vocabulary};
use super::{ROWS, published, training};

phalanx_config::settings! {
    /// The settings of a decoder like Llama's.
    pub(in crate::tasks) struct LlamaSettings {
        /// The number of layers.
        layers: usize = 4;
        /// Features of a token's state.
        width: usize = 128;
        /// Attention heads of queries.
        heads: usize = 4;
        /// Attention heads of keys and values; they divide `model.heads`.
        key_heads: usize = 2;
        /// Features of a head; 0 = the width divided by the heads.
        head_dim: usize = 0;
        /// Features between the two layers of a feed-forward part; 0 = 8/3 of the width, to a multiple of 32.
        inner: usize = 0;
        /// Experts of each feed-forward part, as in Mixtral; 0 = one part for all tokens.
        experts: usize = 0;
        /// The experts that a token uses.
        experts_chosen: usize = 2;
        /// The weight of the loss that balances the experts of each text; without it some may be left unused.
        balance_weight: f64 = 0.0;
        /// The longest sequence, in tokens.
        context: usize = 64;
        /// The base of the frequencies of rotary positions.
        theta: f64 = 10_000.0;
        /// Queries and keys are normalised head by head, as in Qwen3.
        head_norms: bool = false;
        /// The head is the table of tokens.
        tied: bool = true;
        flatten text: TextKeys;
    }
}

/// The models of transformers.
const TRANSFORMERS: TransformersModels = TransformersModels {
    types: &["llama", "qwen2", "qwen3", "mixtral"],
    architecture: None,
    loader: "AutoModelForCausalLM",
    pipeline: "text-generation",
    command: "write FOLDER --prompt \"Once upon a time\"",
    length: TextLength { fills: false, ..TextLength::WHOLE },
};

impl LlamaSettings {
    /// Returns the sizes that the settings say, with 0 rows of the table of tokens where the tokenizer decides.
    fn own_sizes(&self) -> DecoderConfig {
        let given = |size: usize, default: usize| if size == 0 { default } else { size };
        DecoderConfig {
            vocab: 0,
            context: self.context,
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            key_heads: self.key_heads,
            head_dim: given(self.head_dim, self.width / self.heads.max(1)),
            inner: given(self.inner, (8 * self.width).div_ceil(3).next_multiple_of(32)),
            experts: (self.experts > 0)
                .then_some(ExpertsConfig { count: self.experts, chosen: self.experts_chosen }),
            head_norms: self.head_norms,
            tied: self.tied,
            rotary: RotaryConfig { theta: self.theta, scaling: RotaryScaling::Default },
            ..DecoderConfig::default()
        }
    }

    /// Returns the settings of the texts.
    fn texts(&self) -> Result<TextSettings, TrainError> {
        Ok(self.text.settings(self.context, self.sizes()?.vocab))
    }
}

impl LanguageSettings for LlamaSettings {
    type Sizes = DecoderConfig;

    fn sizes(&self) -> Result<DecoderConfig, TrainError> {
        match self.text.config.as_str() {
            "" => Ok(self.own_sizes()),
            path => published(path, DecoderConfig::from_json),
        }
    }

    fn vocabulary(&self, config: &Config) -> Result<Vocabulary, TrainError> {
        self.texts()?.vocabulary(config)
    }

    fn with_rows(sizes: DecoderConfig, vocab: usize) -> DecoderConfig {
        DecoderConfig { vocab, ..sizes }
    }

    fn json(&self, _: &Config, sizes: &DecoderConfig) -> Result<serde_json::Value, TrainError> {
        Ok(sizes.to_json())
    }
}

/// Returns the task of decoders.
pub(in crate::tasks) fn spec() -> TaskSpec<LlamaSettings> {
    let about = "Language model: a decoder like Llama's, on a text file or on generated sentences";
    keeping_files(TaskSpec::new("llama", about, build))
        .data(|settings, config, split| settings.texts()?.open(config, split))
        .transformers(TRANSFORMERS)
        .validate(|settings, _, relations| {
            check_experts(settings, relations);
            for (key, size) in [
                ("model.layers", settings.layers),
                ("model.width", settings.width),
                ("model.heads", settings.heads),
                ("model.key_heads", settings.key_heads),
            ] {
                relations.positive(key, size as u64);
            }
            settings.text.settings(settings.context, 0).check(relations);
            let LlamaSettings { heads, key_heads, width, theta, .. } = *settings;
            let relation = format!("model.key_heads = {key_heads}: {heads} heads cannot share {key_heads}");
            let shared = key_heads == 0 || heads.is_multiple_of(key_heads);
            relations.require(shared, "model.key_heads", relation);
            let dim = settings.own_sizes().head_dim;
            let relation = format!(
                "model.head_dim: {heads} heads of a width of {width} have {dim} features; rotary positions need an even number"
            );
            relations.require(dim > 0 && dim.is_multiple_of(2), "model.head_dim", relation);
            let relation = format!("model.theta = {theta}: it must be above 1");
            relations.require(theta > 1.0, "model.theta", relation);
        })
}

/// Checks the settings of experts.
fn check_experts(settings: &LlamaSettings, relations: &mut Relations<'_>) {
    let LlamaSettings { experts, experts_chosen: chosen, head_norms, .. } = *settings;
    relations.require(
        experts == 0 || (1..=experts).contains(&chosen),
        "model.experts_chosen",
        format!("model.experts_chosen = {chosen}: a token uses 1 to {experts} of model.experts"),
    );
    relations.not_negative("model.balance_weight", settings.balance_weight);
    relations.require(
        settings.balance_weight == 0.0 || experts > 0 || !settings.text.config.is_empty(),
        "model.balance_weight",
        "model.balance_weight: a model without experts has nothing to balance; set model.experts".to_owned(),
    );
    relations.require(
        experts == 0 || !head_norms,
        "model.head_norms",
        "model.head_norms = true: no published model has experts and norms of heads".to_owned(),
    );
}

fn build(setup: &mut Setup<'_>, settings: &LlamaSettings) -> Result<Training<Decoder>, TrainError> {
    let vocabulary = settings.vocabulary(setup.config())?;
    let config = settings.built(&vocabulary)?;
    vocabulary.check_context(settings.context, config.context)?;
    if config.experts.is_some() && setup.config().train.graphs {
        let problem = "train.graphs = true: tokens choose their experts, so steps compute different things; set it to false";
        return Err(TrainError::Setup(problem.to_owned()));
    }
    if config.experts.is_none() && settings.balance_weight != 0.0 {
        let problem = "model.balance_weight: the model of model.config has no experts to balance";
        return Err(TrainError::Setup(problem.to_owned()));
    }
    setup.cut_by(|| config.tensor_plan())?;
    let model = setup.model(|scope| Decoder::new(scope, &config))?;
    let DecoderConfig { layers, width, heads, key_heads, context, experts, .. } = config;
    let about = &vocabulary.about;
    let balance_weight = experts.map(|_| settings.balance_weight);
    let experts = experts.map_or_else(String::new, |ExpertsConfig { count, chosen }| {
        format!(" and {chosen} of {count} experts")
    });
    let description = format!(
        "llama of {layers} layers of {width} with {heads} heads that share {key_heads}{experts} for {context} of {about}"
    );
    Ok(training(description, model, &vocabulary, balance_weight).shape_advice("model.embed_tokens", ROWS))
}
