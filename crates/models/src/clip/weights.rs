//! Conversion of text-encoder weight names from Hugging Face's to openai's.

use std::collections::BTreeMap;

use candle_core::Tensor;
use phalanx_tensor::{Result, TensorError};

/// Names of openai's text encoder begin with these.
const OPENAI: [&str; 5] =
    ["token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection"];

/// True for the names of text-encoder weights that [`openai_names`] reads.
pub fn is_text_weight(name: &str) -> bool {
    let hugging_face = name.starts_with("text_model.") && !name.ends_with("position_ids");
    hugging_face || OPENAI.iter().any(|start| name.starts_with(start))
}

/// Converts text-encoder weights with openai's or Hugging Face's names to openai/CLIP's names.
///
/// Hugging Face splits the attention's input projection in three and transposes the text projection
/// (`convert_clip_original_pytorch_to_hf.py`). The image encoder, `position_ids` and other entries are left out.
///
/// # Errors
/// If a part of a split projection is missing.
pub fn openai_names(tensors: Vec<(String, Tensor)>) -> Result<Vec<(String, Tensor)>> {
    let hugging_face = tensors.iter().any(|(name, _)| name.starts_with("text_model."));
    if !hugging_face {
        return Ok(tensors.into_iter().filter(|(name, _)| is_text_weight(name)).collect());
    }
    let mut all: BTreeMap<String, Tensor> = tensors.into_iter().collect();
    let mut renamed = Vec::new();
    let simple = [
        ("text_model.embeddings.token_embedding.weight", "token_embedding.weight"),
        ("text_model.embeddings.position_embedding.weight", "positional_embedding"),
        ("text_model.final_layer_norm.weight", "ln_final.weight"),
        ("text_model.final_layer_norm.bias", "ln_final.bias"),
    ];
    for (from, to) in simple {
        renamed.extend(all.remove(from).map(|tensor| (to.to_owned(), tensor)));
    }
    if let Some(projection) = all.remove("text_projection.weight") {
        renamed.push(("text_projection".into(), projection.t()?.contiguous()?));
    }
    for layer in 0.. {
        let from = format!("text_model.encoder.layers.{layer}.");
        if !all.keys().any(|name| name.starts_with(&from)) {
            break;
        }
        let to = format!("transformer.resblocks.{layer}.");
        for kind in ["weight", "bias"] {
            let mut parts = Vec::with_capacity(3);
            for part in ["q", "k", "v"] {
                let name = format!("{from}self_attn.{part}_proj.{kind}");
                let missing = || TensorError::UnknownName {
                    name: name.clone(),
                    hint: ": the file of weights lacks it".into(),
                };
                parts.push(all.remove(&name).ok_or_else(missing)?);
            }
            renamed.push((format!("{to}attn.in_proj_{kind}"), Tensor::cat(&parts, 0)?));
            for (old, new) in [
                ("self_attn.out_proj", "attn.out_proj"),
                ("layer_norm1", "ln_1"),
                ("layer_norm2", "ln_2"),
                ("mlp.fc1", "mlp.c_fc"),
                ("mlp.fc2", "mlp.c_proj"),
            ] {
                let tensor = all.remove(&format!("{from}{old}.{kind}"));
                renamed.extend(tensor.map(|tensor| (format!("{to}{new}.{kind}"), tensor)));
            }
        }
    }
    Ok(renamed)
}
