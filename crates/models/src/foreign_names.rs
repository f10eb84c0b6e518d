//! Names that other programs give to the parameters of models here: tables for weights that they have saved.
//!
//! | function | names of | example |
//! |---|---|---|
//! | [`resnet_of_hugging_face`] | `transformers`' `ResNetForImageClassification`, `ResNetModel` | `resnet.encoder.stages.0.layers.0.shortcut.convolution.weight` |
//! | [`mobilenet_v2_of_timm`] | timm's `mobilenetv2_100` | `blocks.1.0.conv_pwl.weight` |
//! | [`vision_transformer_of_hugging_face`] | `transformers`' `ViTForImageClassification`, `ViTModel` | `vit.encoder.layer.0.layernorm_before.weight` |
//! | [`vision_transformer_of_timm`] | timm's `vit_base_patch16_224` and others | `blocks.0.attn.qkv.weight` |
//!
//! torchvision's names, and those of timm's ResNets, are the names here. The MobileNetV2 of `transformers` pads its
//! convolutions as TensorFlow does and computes something else, so there is no table for it.

use phalanx_tensor::io::NamePart;

use crate::mobilenet_v2::STAGES;

/// Translates `convolution.TENSOR` and `normalization.TENSOR`, given the names of that convolution and norm here.
fn conv_norm(part: &str, conv: &str, norm: &str) -> Option<String> {
    let (layer, tensor) = part.split_once('.')?;
    match layer {
        "convolution" => Some(format!("{conv}.{tensor}")),
        "normalization" => Some(format!("{norm}.{tensor}")),
        _ => None,
    }
}

/// Returns the name in [`crate::ResNet`] of a tensor of `transformers`' ResNets, with or without their prefix `resnet.`; `None`
/// for other tensors.
///
/// Source: `transformers/models/resnet/modeling_resnet.py`.
///
/// ```
/// use phalanx_models::foreign_names::resnet_of_hugging_face;
///
/// let name = "resnet.encoder.stages.0.layers.1.layer.0.convolution.weight";
/// assert_eq!(resnet_of_hugging_face(name).as_deref(), Some("layer1.1.conv1.weight"));
/// assert_eq!(resnet_of_hugging_face("classifier.1.bias").as_deref(), Some("fc.bias"));
/// assert_eq!(resnet_of_hugging_face("bert.embeddings.weight"), None);
/// ```
pub fn resnet_of_hugging_face(name: &str) -> Option<String> {
    if let Some(tensor) = name.strip_prefix("classifier.1.") {
        return Some(format!("fc.{tensor}"));
    }
    let name = name.strip_prefix("resnet.").unwrap_or(name);
    if let Some(part) = name.strip_prefix("embedder.embedder.") {
        return conv_norm(part, "conv1", "bn1");
    }
    let (stage, rest) = name.strip_prefix("encoder.stages.")?.split_once(".layers.")?;
    let (block, rest) = rest.split_once('.')?;
    let (stage, block) = (stage.parse::<usize>().ok()?, block.parse::<usize>().ok()?);
    let block = format!("layer{}.{block}", stage + 1);
    if let Some(part) = rest.strip_prefix("shortcut.") {
        return conv_norm(part, &format!("{block}.downsample.0"), &format!("{block}.downsample.1"));
    }
    let (layer, part) = rest.strip_prefix("layer.")?.split_once('.')?;
    let layer = layer.parse::<usize>().ok()? + 1;
    conv_norm(part, &format!("{block}.conv{layer}"), &format!("{block}.bn{layer}"))
}

/// Returns the name in [`crate::MobileNetV2`] of a tensor of timm's `mobilenetv2_100`; `None` for other tensors.
///
/// Source: `timm/models/efficientnet.py`, `timm/models/_efficientnet_blocks.py`.
///
/// ```
/// use phalanx_models::foreign_names::mobilenet_v2_of_timm;
///
/// assert_eq!(mobilenet_v2_of_timm("blocks.1.1.conv_pwl.weight").as_deref(), Some("features.3.conv.2.weight"));
/// assert_eq!(mobilenet_v2_of_timm("classifier.bias").as_deref(), Some("classifier.1.bias"));
/// ```
pub fn mobilenet_v2_of_timm(name: &str) -> Option<String> {
    let blocks: usize = STAGES.iter().map(|(_, _, repeats, _)| repeats).sum();
    let (first, rest) = name.split_once('.')?;
    Some(match first {
        "conv_stem" => format!("features.0.0.{rest}"),
        "bn1" => format!("features.0.1.{rest}"),
        "conv_head" => format!("features.{}.0.{rest}", blocks + 1),
        "bn2" => format!("features.{}.1.{rest}", blocks + 1),
        "classifier" => format!("classifier.1.{rest}"),
        "blocks" => return block_of_timm(rest),
        _ => return None,
    })
}

/// Translates `STAGE.INDEX.LAYER.TENSOR`.
fn block_of_timm(name: &str) -> Option<String> {
    let mut parts = name.splitn(4, '.');
    let (stage, index) = (parts.next()?.parse::<usize>().ok()?, parts.next()?.parse::<usize>().ok()?);
    let (layer, tensor) = (parts.next()?, parts.next()?);
    let (_, _, repeats, _) = STAGES.get(stage)?;
    if index >= *repeats {
        return None;
    }
    let before: usize = STAGES[..stage].iter().map(|(_, _, repeats, _)| repeats).sum();
    let place = match (stage, layer) {
        // The first block has no expansion.
        (0, "conv_dw") | (1.., "conv_pw") => "0.0",
        (0, "bn1") | (1.., "bn1") => "0.1",
        (0, "conv_pw") => "1",
        (0, "bn2") => "2",
        (1.., "conv_dw") => "1.0",
        (1.., "bn2") => "1.1",
        (1.., "conv_pwl") => "2",
        (1.., "bn3") => "3",
        _ => return None,
    };
    Some(format!("features.{}.conv.{place}.{tensor}", before + index + 1))
}

/// Returns the name in [`crate::VisionTransformer`] of a tensor of timm's Vision Transformers with a class token; `None` for other
/// tensors.
///
/// Source: `timm/models/vision_transformer.py`.
///
/// ```
/// use phalanx_models::foreign_names::vision_transformer_of_timm;
///
/// let name = vision_transformer_of_timm("blocks.11.attn.qkv.bias");
/// assert_eq!(name.as_deref(), Some("encoder.layers.encoder_layer_11.self_attention.in_proj_bias"));
/// assert_eq!(vision_transformer_of_timm("cls_token").as_deref(), Some("class_token"));
/// assert_eq!(vision_transformer_of_timm("dist_token"), None);
/// ```
pub fn vision_transformer_of_timm(name: &str) -> Option<String> {
    let (first, rest) = name.split_once('.').unwrap_or((name, ""));
    Some(match (first, rest) {
        ("cls_token", "") => "class_token".to_owned(),
        ("pos_embed", "") => "encoder.pos_embedding".to_owned(),
        ("patch_embed", _) => format!("conv_proj.{}", rest.strip_prefix("proj.")?),
        ("norm", tensor) => format!("encoder.ln.{tensor}"),
        ("head", tensor) => format!("heads.head.{tensor}"),
        ("blocks", _) => {
            let (index, layer) = rest.split_once('.')?;
            let index = index.parse::<usize>().ok()?;
            format!("encoder.layers.encoder_layer_{index}.{}", layer_of_timm(layer)?)
        }
        _ => return None,
    })
}

/// Returns the name in [`crate::VisionTransformer`] of a tensor of `transformers`' `ViTForImageClassification`, with or without its prefix
/// `vit.`; `None` for other tensors. Queries, keys and values are three tensors there.
///
/// Source: `transformers/models/vit/modeling_vit.py`.
///
/// ```
/// use phalanx_models::foreign_names::vision_transformer_of_hugging_face;
///
/// let name = vision_transformer_of_hugging_face("vit.encoder.layer.0.attention.attention.key.bias").expect("known");
/// assert_eq!(name.name, "encoder.layers.encoder_layer_0.self_attention.in_proj_bias");
/// assert_eq!((name.part, name.parts), (1, 3));
/// assert_eq!(vision_transformer_of_hugging_face("vit.pooler.dense.bias"), None);
/// ```
pub fn vision_transformer_of_hugging_face(name: &str) -> Option<NamePart> {
    if let Some(tensor) = name.strip_prefix("classifier.") {
        return Some(NamePart::whole(format!("heads.head.{tensor}")));
    }
    let name = name.strip_prefix("vit.").unwrap_or(name);
    if let Some(rest) = name.strip_prefix("encoder.layer.") {
        let (index, layer) = rest.split_once('.')?;
        let index = index.parse::<usize>().ok()?;
        let part = layer_of_hugging_face(layer)?;
        return Some(NamePart {
            name: format!("encoder.layers.encoder_layer_{index}.{}", part.name),
            ..part
        });
    }
    let name = match name.rsplit_once('.')? {
        ("embeddings", "cls_token") => "class_token".to_owned(),
        ("embeddings", "position_embeddings") => "encoder.pos_embedding".to_owned(),
        ("embeddings.patch_embeddings.projection", tensor) => format!("conv_proj.{tensor}"),
        ("layernorm", tensor) => format!("encoder.ln.{tensor}"),
        _ => return None,
    };
    Some(NamePart::whole(name))
}

/// Translates `LAYER.TENSOR` of a layer of `transformers`' Vision Transformer.
fn layer_of_hugging_face(name: &str) -> Option<NamePart> {
    let (layer, tensor) = name.rsplit_once('.')?;
    let projected =
        |part| Some(NamePart { name: format!("self_attention.in_proj_{tensor}"), part, parts: 3 });
    let own = match layer {
        "attention.attention.query" => return projected(0),
        "attention.attention.key" => return projected(1),
        "attention.attention.value" => return projected(2),
        "attention.output.dense" => "self_attention.out_proj",
        "layernorm_before" => "ln_1",
        "layernorm_after" => "ln_2",
        "intermediate.dense" => "mlp.0",
        "output.dense" => "mlp.3",
        _ => return None,
    };
    Some(NamePart::whole(format!("{own}.{tensor}")))
}

/// Translates `LAYER.TENSOR` of a Vision Transformer's block.
fn layer_of_timm(name: &str) -> Option<String> {
    let (layer, tensor) = name.rsplit_once('.')?;
    Some(match layer {
        "norm1" => format!("ln_1.{tensor}"),
        "norm2" => format!("ln_2.{tensor}"),
        "attn.qkv" => format!("self_attention.in_proj_{tensor}"),
        "attn.proj" => format!("self_attention.out_proj.{tensor}"),
        "mlp.fc1" => format!("mlp.0.{tensor}"),
        "mlp.fc2" => format!("mlp.3.{tensor}"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use phalanx_tensor::{BuildOptions, StoreBuilder};

    use super::*;
    use crate::{
        MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig, ResNetVariant, VisionTransformer,
        VisionTransformerConfig,
    };

    /// The names of all tensors of a ResNet in `transformers`.
    fn names_there(depths: [usize; 4], layers: usize, shortcut_in_first: bool) -> Vec<String> {
        let mut layer_names = vec!["resnet.embedder.embedder".to_owned()];
        for (stage, depth) in depths.into_iter().enumerate() {
            for block in 0..depth {
                let place = format!("resnet.encoder.stages.{stage}.layers.{block}");
                layer_names.extend((0..layers).map(|layer| format!("{place}.layer.{layer}")));
                if block == 0 && (stage > 0 || shortcut_in_first) {
                    layer_names.push(format!("{place}.shortcut"));
                }
            }
        }
        let mut names = vec!["classifier.1.weight".to_owned(), "classifier.1.bias".to_owned()];
        for layer in layer_names {
            names.push(format!("{layer}.convolution.weight"));
            for tensor in ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"] {
                names.push(format!("{layer}.normalization.{tensor}"));
            }
        }
        names
    }

    fn names_here(build: impl FnOnce(&phalanx_tensor::Scope)) -> BTreeSet<String> {
        let builder = StoreBuilder::new(BuildOptions { fill: false, ..BuildOptions::default() });
        build(&builder.root());
        builder.build().expect("small").names().map(str::to_owned).collect()
    }

    #[test]
    fn every_name_of_a_resnet_has_its_counterpart() {
        for (variant, depths, layers, shortcut) in [
            (ResNetVariant::R18, [2, 2, 2, 2], 2, false),
            (ResNetVariant::R34, [3, 4, 6, 3], 2, false),
            (ResNetVariant::R50, [3, 4, 6, 3], 3, true),
        ] {
            let config = ResNetConfig { width: 8, ..ResNetConfig::new(variant, 10) };
            let here = names_here(|scope| drop(ResNet::new(scope, &config).expect("new names")));
            let there = names_there(depths, layers, shortcut);
            let found: BTreeSet<String> =
                there.iter().map(|name| resnet_of_hugging_face(name).expect("known")).collect();
            assert_eq!(found, here, "{variant:?}");
            let bare: BTreeSet<String> = there
                .iter()
                .filter_map(|name| resnet_of_hugging_face(name.strip_prefix("resnet.").unwrap_or(name)))
                .collect();
            assert_eq!(bare, here, "without the prefix");
        }
        for other in ["conv1.weight", "encoder.stages.x.layers.0.layer.0.convolution.weight", "fc.weight"] {
            assert_eq!(resnet_of_hugging_face(other), None, "{other}");
        }
    }

    #[test]
    fn every_name_of_timms_mobilenet_has_its_counterpart() {
        let config = MobileNetV2Config::new(10);
        let here = names_here(|scope| drop(MobileNetV2::new(scope, &config).expect("new names")));
        let mut there = vec!["classifier.weight".to_owned(), "classifier.bias".to_owned()];
        let mut layer = |conv: &str, norm: &str| {
            there.push(format!("{conv}.weight"));
            for tensor in ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"] {
                there.push(format!("{norm}.{tensor}"));
            }
        };
        layer("conv_stem", "bn1");
        layer("conv_head", "bn2");
        for (stage, (_, _, repeats, _)) in STAGES.into_iter().enumerate() {
            for index in 0..repeats {
                let place = format!("blocks.{stage}.{index}");
                let convs: &[&str] =
                    if stage == 0 { &["conv_dw", "conv_pw"] } else { &["conv_pw", "conv_dw", "conv_pwl"] };
                for (number, conv) in convs.iter().enumerate() {
                    layer(&format!("{place}.{conv}"), &format!("{place}.bn{}", number + 1));
                }
            }
        }
        let found: BTreeSet<String> =
            there.iter().map(|name| mobilenet_v2_of_timm(name).expect("known")).collect();
        assert_eq!(found, here);
        for other in ["features.0.0.weight", "blocks.7.0.conv_pw.weight", "blocks.0.1.conv_pw.weight"] {
            assert_eq!(mobilenet_v2_of_timm(other), None, "{other}");
        }
    }

    /// The names of a Vision Transformer of two layers.
    fn names_of_vision_transformer() -> BTreeSet<String> {
        let small = VisionTransformerConfig {
            width: 8,
            heads: 2,
            inner: 8,
            layers: 2,
            ..VisionTransformerConfig::base(3)
        };
        names_here(|scope| drop(VisionTransformer::new(scope, &small).expect("new names")))
    }

    /// The weight and the bias of each layer.
    fn with_biases(layers: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
        layers.flat_map(|layer| ["weight", "bias"].map(|tensor| format!("{layer}.{tensor}")))
    }

    #[test]
    fn every_name_of_a_vision_transformer_has_its_counterpart() {
        let here = names_of_vision_transformer();
        let layers = [
            "attention.attention.query",
            "attention.attention.key",
            "attention.attention.value",
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
            "layernorm_before",
            "layernorm_after",
        ];
        let layers = (0..2).flat_map(|at| layers.map(|layer| format!("vit.encoder.layer.{at}.{layer}")));
        let others =
            ["vit.embeddings.patch_embeddings.projection", "vit.layernorm", "classifier"].map(str::to_owned);
        let there: Vec<String> = with_biases(layers.chain(others))
            .chain(["vit.embeddings.cls_token", "vit.embeddings.position_embeddings"].map(str::to_owned))
            .collect();
        let found: Vec<NamePart> =
            there.iter().map(|name| vision_transformer_of_hugging_face(name).expect("known")).collect();
        let names: BTreeSet<String> = found.iter().map(|part| part.name.clone()).collect();
        assert_eq!(names, here);
        for name in &here {
            let parts: Vec<&NamePart> = found.iter().filter(|part| part.name == *name).collect();
            let order: Vec<usize> = parts.iter().map(|part| part.part).collect();
            assert!(parts.iter().all(|part| part.parts == parts.len()), "{name}");
            assert_eq!(order, (0..parts.len()).collect::<Vec<_>>(), "{name}");
        }
        for other in ["encoder.layer.0.attention.attention.scale", "vit.pooler.dense.weight", "cls_token"] {
            assert_eq!(vision_transformer_of_hugging_face(other), None, "{other}");
        }
    }

    #[test]
    fn every_name_of_timms_vision_transformer_has_its_counterpart() {
        let here = names_of_vision_transformer();
        let layers = ["norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"];
        let layers = (0..2).flat_map(|block| layers.map(|layer| format!("blocks.{block}.{layer}")));
        let others = ["patch_embed.proj", "norm", "head"].map(str::to_owned);
        let there: Vec<String> =
            with_biases(layers.chain(others)).chain(["cls_token", "pos_embed"].map(str::to_owned)).collect();
        let found: BTreeSet<String> =
            there.iter().map(|name| vision_transformer_of_timm(name).expect("known")).collect();
        assert_eq!(found, here);
        for other in ["class_token", "blocks.x.norm1.weight", "blocks.0.attn.q_norm.weight", "reg_token"] {
            assert_eq!(vision_transformer_of_timm(other), None, "{other}");
        }
    }
}
