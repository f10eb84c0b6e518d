//! GPT-2.

use phalanx_config::Config;
use phalanx_models::{FeedForwardActivation, Gpt2, Gpt2Config};
use phalanx_trainer::engine::{Setup, TaskSpec, TextLength, TrainError, Training, TransformersModels};

use super::settings::{LanguageSettings, TextKeys, keeping_files};
use super::text::{TextSettings, Vocabulary};
use super::{ROWS, published, training};

phalanx_config::settings! {
    /// The settings of a GPT-2.
    pub(in crate::tasks) struct Gpt2Settings {
        /// The number of layers.
        layers: usize = 4;
        /// Features of a token's state.
        width: usize = 128;
        /// Attention heads; they divide the width.
        heads: usize = 4;
        /// The activation of the feed-forward parts, by its name in transformers: `gelu_new`, `gelu`, `relu`, `relu2` or `silu`.
        activation: String = "gelu_new".into();
        /// The longest sequence, in tokens.
        context: usize = 64;
        /// Probability that an element of the embeddings, of attention weights, or of what a layer adds, is set to zero in
        /// training.
        dropout: f64 = 0.1;
        flatten text: TextKeys;
    }
}

/// The models of transformers.
const TRANSFORMERS: TransformersModels = TransformersModels {
    types: &["gpt2"],
    architecture: None,
    loader: "AutoModelForCausalLM",
    pipeline: "text-generation",
    command: "write FOLDER --prompt \"Once upon a time\"",
    length: TextLength { positions: "n_positions", fills: false, ..TextLength::WHOLE },
};

impl Gpt2Settings {
    fn named_activation(&self) -> Result<FeedForwardActivation, TrainError> {
        let (name, expected) = (&self.activation, FeedForwardActivation::EXPECTED);
        let problem = || TrainError::Setup(format!("model.activation = \"{name}\": expected {expected}"));
        FeedForwardActivation::named(name).ok_or_else(problem)
    }

    /// Returns the settings of the texts.
    fn texts(&self) -> Result<TextSettings, TrainError> {
        Ok(self.text.settings(self.context, self.sizes()?.vocab))
    }
}

impl LanguageSettings for Gpt2Settings {
    type Sizes = Gpt2Config;

    fn sizes(&self) -> Result<Gpt2Config, TrainError> {
        let sizes = match self.text.config.as_str() {
            "" => Gpt2Config {
                vocab: 0,
                context: self.context,
                width: self.width,
                layers: self.layers,
                heads: self.heads,
                inner: 4 * self.width,
                activation: self.named_activation()?,
                ..Gpt2Config::default()
            },
            path => published(path, Gpt2Config::from_json)?,
        };
        Ok(sizes.with_dropout(self.dropout))
    }

    fn vocabulary(&self, config: &Config) -> Result<Vocabulary, TrainError> {
        self.texts()?.vocabulary(config)
    }

    fn with_rows(sizes: Gpt2Config, vocab: usize) -> Gpt2Config {
        Gpt2Config { vocab, ..sizes }
    }

    fn json(&self, _: &Config, sizes: &Gpt2Config) -> Result<serde_json::Value, TrainError> {
        Ok(sizes.to_json())
    }
}

/// Returns the task of GPT-2.
pub(in crate::tasks) fn spec() -> TaskSpec<Gpt2Settings> {
    let spec = TaskSpec::new("gpt2", "Language model: GPT-2 on a text file or on generated sentences", build);
    keeping_files(spec)
        .data(|settings, config, split| settings.texts()?.open(config, split))
        .transformers(TRANSFORMERS)
        .validate(|settings, _, relations| {
            for (key, size) in [
                ("model.layers", settings.layers),
                ("model.width", settings.width),
                ("model.heads", settings.heads),
            ] {
                relations.positive(key, size as u64);
            }
            if let Err(error) = settings.named_activation() {
                relations.require(false, "model.activation", error.to_string());
            }
            settings.text.settings(settings.context, 0).check(relations);
            relations.fraction("model.dropout", settings.dropout);
            let (width, heads) = (settings.width, settings.heads);
            let relation = format!("model.heads = {heads}: {heads} heads do not divide a width of {width}");
            relations.require(heads == 0 || width.is_multiple_of(heads), "model.heads", relation);
        })
}

fn build(setup: &mut Setup<'_>, settings: &Gpt2Settings) -> Result<Training<Gpt2>, TrainError> {
    let vocabulary = settings.vocabulary(setup.config())?;
    let config = settings.built(&vocabulary)?;
    vocabulary.check_context(settings.context, config.context)?;
    setup.cut_by(|| config.tensor_plan())?;
    let model = setup.model(|scope| Gpt2::new(scope, &config))?;
    let Gpt2Config { layers, width, heads, context, .. } = config;
    let about = &vocabulary.about;
    let description =
        format!("gpt2 of {layers} layers of {width} with {heads} heads for {context} of {about}");
    let training = training(description, model, &vocabulary, None).names_of(Gpt2Config::published_name);
    Ok(training.shape_advice("transformer.wte", ROWS))
}
