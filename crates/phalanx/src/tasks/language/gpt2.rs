//! GPT-2.

use phalanx_models::{Gpt2, Gpt2Config};
use phalanx_trainer::config::Config;
use phalanx_trainer::engine::{Setup, TaskSpec, TrainError, Training};

use super::text::TextSettings;
use super::{CONFIG, ROWS, TOKENIZER, published, training};

phalanx_trainer::settings! {
    /// The settings of a GPT-2.
    pub(in crate::tasks) struct Gpt2Settings {
        /// The number of layers.
        layers: usize = 4;
        /// Features of a token's state.
        width: usize = 128;
        /// Attention heads; they divide the width.
        heads: usize = 4;
        /// The longest sequence, in tokens.
        context: usize = 64;
        /// Probability that an element of the embeddings, of attention weights, or of what a layer adds, is set to zero in
        /// training.
        dropout: f64 = 0.1;
        /// The `config.json` or the folder of a published model: its sizes are in place of `layers` to `heads`. Its weights are read by
        /// `model.weights`.
        config: String = String::new();
        /// The tokens of texts (`data.path`): `characters`, `bytes`, or the file or folder of a tokenizer. Empty: the `tokenizer.json`
        /// in the folder of the data, or else characters.
        tokenizer: String = String::new();
        /// Documents that share a row do not see each other, and positions begin anew.
        apart: bool = false;
        /// Tokens between the windows of the test split; 0 = the context, so that windows do not overlap.
        stride: usize = 0;
        /// Generated training texts, if there is no `data.path`.
        texts: usize = 100_000;
    }
}

/// The types of published models.
const MODEL_TYPES: &[&str] = &["gpt2"];

impl Gpt2Settings {
    /// Returns the sizes, with 0 rows of the table of tokens where the tokenizer decides.
    fn sizes(&self) -> Result<Gpt2Config, TrainError> {
        let sizes = match self.config.as_str() {
            "" => Gpt2Config {
                vocab: 0,
                context: self.context,
                width: self.width,
                layers: self.layers,
                heads: self.heads,
                inner: 4 * self.width,
                ..Gpt2Config::default()
            },
            path => published(path, Gpt2Config::from_json)?,
        };
        Ok(sizes.with_dropout(self.dropout))
    }

    /// Returns the settings of texts for a model of these sizes.
    fn text_of(&self, sizes: &Gpt2Config) -> TextSettings {
        let Self { context, apart, stride, texts, .. } = *self;
        let (tokenizer, published) = (self.tokenizer.clone(), self.config.clone());
        TextSettings { context, tokenizer, published, vocab: sizes.vocab, apart, stride, texts }
    }

    /// Returns the sizes with the rows of a vocabulary.
    fn built(&self, rows: usize) -> Result<Gpt2Config, TrainError> {
        Ok(Gpt2Config { vocab: rows, ..self.sizes()? })
    }

    fn config_file(&self, config: &Config) -> Result<Option<String>, TrainError> {
        let vocabulary = self.text_of(&self.sizes()?).vocabulary(config)?;
        Ok(Some(format!("{:#}\n", self.built(vocabulary.rows)?.to_json())))
    }
}

/// Returns the task of GPT-2.
pub(in crate::tasks) fn spec() -> TaskSpec<Gpt2Settings> {
    TaskSpec::new("gpt2", "Language model: GPT-2 on a text file or on generated sentences", build)
        .data(|settings, config, split| settings.text_of(&settings.sizes()?).open(config, split))
        .keeps(TOKENIZER, |settings, config| settings.text_of(&settings.sizes()?).tokenizer_file(config))
        .keeps(CONFIG, Gpt2Settings::config_file)
        .model_types(MODEL_TYPES)
        .validate(|settings, _, relations| {
            for (key, size) in [
                ("model.layers", settings.layers),
                ("model.width", settings.width),
                ("model.heads", settings.heads),
            ] {
                relations.positive(key, size as u64);
            }
            settings.text_of(&Gpt2Config::default()).check(relations);
            relations.fraction("model.dropout", settings.dropout);
            let (width, heads) = (settings.width, settings.heads);
            let relation = format!("model.heads = {heads}: {heads} heads do not divide a width of {width}");
            relations.require(heads == 0 || width.is_multiple_of(heads), "model.heads", relation);
        })
}

fn build(setup: &mut Setup<'_>, settings: &Gpt2Settings) -> Result<Training<Gpt2>, TrainError> {
    let vocabulary = settings.text_of(&settings.sizes()?).vocabulary(setup.config())?;
    let config = settings.built(vocabulary.rows)?;
    vocabulary.check_context(settings.context, config.context)?;
    let model = setup.model(|scope| Gpt2::new(scope, &config))?;
    let Gpt2Config { layers, width, heads, context, .. } = config;
    let about = &vocabulary.about;
    let description =
        format!("gpt2 of {layers} layers of {width} with {heads} heads for {context} of {about}");
    let training = training(description, model, &vocabulary).names_of(Gpt2Config::published_name);
    Ok(training.shape_advice("transformer.wte", ROWS))
}
