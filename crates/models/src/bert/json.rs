//! The `config.json` of published BERTs, and the names of their files.

use serde_json::{Map, Value, json};

use super::BertConfig;
use crate::FeedForwardActivation;
use crate::published_config::{Keys, PublishedConfigError, Result};

/// Keys that belong to heads, or to other programs.
const NEUTRAL: &[&str] = &[
    "classifier_dropout",
    "directionality",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "label2id",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "problem_type",
];

impl BertConfig {
    /// Reads the `config.json` of a published BERT.
    ///
    /// # Errors
    /// If a key is missing or not known, or the model has a part that [`Bert`](super::Bert) has not: named by its key.
    pub fn from_json(text: &str) -> Result<Self> {
        let mut keys = Keys::parse(text)?;
        let family = keys.family(&["bert"], "bert")?;
        let activation = keys.activation("hidden_act")?.unwrap_or(FeedForwardActivation::Gelu);
        keys.only("position_embedding_type", &"absolute".into(), "absolute")?;
        keys.only("is_decoder", &false.into(), "false")?;
        keys.only("add_cross_attention", &false.into(), "false")?;
        keys.only("tie_word_embeddings", &true.into(), "true")?;
        NEUTRAL.iter().for_each(|key| drop(keys.take(key)));
        let dropout = |keys: &mut Keys, key| Ok::<_, PublishedConfigError>(keys.number(key)?.unwrap_or(0.1));
        let config = Self {
            vocab: keys.needed("vocab_size")?,
            context: keys.needed("max_position_embeddings")?,
            types: keys.size("type_vocab_size")?.unwrap_or(2),
            width: keys.needed("hidden_size")?,
            layers: keys.needed("num_hidden_layers")?,
            heads: keys.needed("num_attention_heads")?,
            inner: keys.needed("intermediate_size")?,
            activation,
            eps: keys.number("layer_norm_eps")?.unwrap_or(1e-12),
            hidden_dropout: dropout(&mut keys, "hidden_dropout_prob")?,
            attention_dropout: dropout(&mut keys, "attention_probs_dropout_prob")?,
            init_std: keys.number("initializer_range")?.unwrap_or(0.02),
        };
        keys.finish(&family)?;
        Ok(config)
    }

    /// Returns the `config.json` of the settings with the masked-token head, for transformers.
    pub fn to_json(&self) -> Value {
        self.json("BertForMaskedLM")
    }

    /// Returns the `config.json` of a classifier of these classes, for transformers.
    pub fn classifier_to_json(&self, classes: &[String]) -> Value {
        let mut json = self.json("BertForSequenceClassification");
        let names: Map<String, Value> = classes
            .iter()
            .enumerate()
            .map(|(label, name)| (label.to_string(), name.clone().into()))
            .collect();
        let labels: Map<String, Value> =
            classes.iter().enumerate().map(|(label, name)| (name.clone(), label.into())).collect();
        json["id2label"] = names.into();
        json["label2id"] = labels.into();
        json["problem_type"] = "single_label_classification".into();
        json
    }

    fn json(&self, architecture: &str) -> Value {
        json!({
            "architectures": [architecture],
            "model_type": "bert",
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "type_vocab_size": self.types,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
            "hidden_act": self.activation.name(),
            "layer_norm_eps": self.eps,
            "hidden_dropout_prob": self.hidden_dropout,
            "attention_probs_dropout_prob": self.attention_dropout,
            "initializer_range": self.init_std,
        })
    }

    /// Returns the classes of the `config.json` of a published classifier, by their labels; `None` if it names none.
    ///
    /// # Errors
    /// If the text is no JSON object, or its labels are not 0, 1, 2, ….
    pub fn published_classes(text: &str) -> Result<Option<Vec<String>>> {
        let mut keys = Keys::parse(text)?;
        let Some(names) = keys.take("id2label") else { return Ok(None) };
        let expected = "an object of names for the labels 0, 1, 2, …";
        let Some(by_label) = names.as_object() else {
            return Keys::unsupported("id2label", &names, expected);
        };
        let found: Option<Vec<String>> = (0..by_label.len())
            .map(|label| by_label.get(&label.to_string())?.as_str().map(str::to_owned))
            .collect();
        match found {
            Some(classes) => Ok(Some(classes)),
            None => Keys::unsupported("id2label", &names, expected),
        }
    }

    /// Returns the name here of a tensor of a published file of a masked-token model: files may lack the prefix `bert.`,
    /// and old ones say gamma and beta. `None` for parts that the model has not, and for tied tensors.
    pub fn published_name(name: &str) -> Option<String> {
        let name = trunk_name(name)?;
        let is_other = ["bert.pooler.", "classifier."].iter().any(|part| name.starts_with(part));
        (!is_other).then_some(name)
    }

    /// Returns the name here of a tensor of a published file of a classifier or of a trunk. `None` for heads of other
    /// purposes.
    pub fn published_classifier_name(name: &str) -> Option<String> {
        trunk_name(name).filter(|name| !name.starts_with("cls."))
    }
}

fn trunk_name(name: &str) -> Option<String> {
    let name = match name.split('.').next() {
        Some("embeddings" | "encoder" | "pooler") => format!("bert.{name}"),
        _ => name.to_owned(),
    };
    let name = match name.rsplit_once('.') {
        Some((layer, "gamma")) => format!("{layer}.weight"),
        Some((layer, "beta")) => format!("{layer}.bias"),
        _ => name,
    };
    let is_absent = name == "bert.embeddings.position_ids"
        || name.starts_with("cls.seq_relationship.")
        || name.starts_with("cls.predictions.decoder.");
    (!is_absent).then_some(name)
}
