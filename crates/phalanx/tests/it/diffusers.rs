//! A tiny Stable Diffusion folder in Hugging Face's layout: written here, read and drawn from, and what is said of
//! damaged ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use phalanx::diffusers::{DiffusersPipeline, Request};
use phalanx_models::diffusion::samplers::SamplerKind;
use phalanx_models::diffusion::{
    AutoencoderKL, AutoencoderKLConfig, UNet2DConditionConfig, UNet2DConditionModel,
};
use phalanx_models::{ClipTextConfig, ClipTextEncoder};
use phalanx_tensor::io::save_safetensors;
use phalanx_tensor::{BuildOptions, Context, Key, Precision, Result, Scope, StoreBuilder};
use serde_json::{Value, json};

use crate::harness::PROGRAM;

const VOCAB: usize = 520;

fn write_json(path: &Path, value: &Value) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
    fs::write(path, serde_json::to_vec_pretty(value).expect("JSON")).expect("writes");
}

/// The parameters of a network as it is drawn.
fn tensors<N>(build: impl FnOnce(&Scope) -> Result<N>) -> Vec<(String, Tensor)> {
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(9), ..BuildOptions::default() });
    build(&builder.root()).expect("new names");
    builder.build().expect("allocates").state_dict().expect("here")
}

fn save(path: &Path, tensors: &[(String, Tensor)], dtype: DType) {
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.to_dtype(dtype).expect("converts")))
        .collect();
    save_safetensors(path, &tensors, &[("format", "pt".to_owned())]).expect("writes");
}

/// Text-encoder weights under Hugging Face's names, without a projection.
fn hugging_face(tensors: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    let mut renamed = Vec::new();
    for (name, tensor) in tensors {
        let layered = name.strip_prefix("transformer.resblocks.").and_then(|rest| rest.split_once('.'));
        match (name.as_str(), layered) {
            ("text_projection", _) => {}
            ("token_embedding.weight", _) => {
                renamed.push(("text_model.embeddings.token_embedding.weight".to_owned(), tensor));
            }
            ("positional_embedding", _) => {
                renamed.push(("text_model.embeddings.position_embedding.weight".to_owned(), tensor));
            }
            (_, Some((layer, rest))) => {
                let at = format!("text_model.encoder.layers.{layer}");
                match rest.strip_prefix("attn.in_proj_") {
                    Some(kind) => {
                        for (part, tensor) in ["q", "k", "v"].iter().zip(tensor.chunk(3, 0).expect("thirds"))
                        {
                            renamed.push((format!("{at}.self_attn.{part}_proj.{kind}"), tensor));
                        }
                    }
                    None => {
                        let rest =
                            rest.replace("attn.out_proj", "self_attn.out_proj").replace("ln_", "layer_norm");
                        let rest = rest.replace("mlp.c_fc", "mlp.fc1").replace("mlp.c_proj", "mlp.fc2");
                        renamed.push((format!("{at}.{rest}"), tensor));
                    }
                }
            }
            (other, None) => renamed.push((other.replace("ln_final", "text_model.final_layer_norm"), tensor)),
        }
    }
    renamed
}

/// Writes a folder as diffusers saves one.
fn write_folder(folder: &Path, dtype: DType) {
    write_json(
        &folder.join("model_index.json"),
        &json!({
            "_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.6.0",
            "feature_extractor": ["transformers", "CLIPImageProcessor"],
            "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
            "scheduler": ["diffusers", "PNDMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
            "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
            "vae": ["diffusers", "AutoencoderKL"]
        }),
    );
    write_json(
        &folder.join("scheduler/scheduler_config.json"),
        &json!({
            "_class_name": "PNDMScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
            "num_train_timesteps": 1000, "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1,
            "trained_betas": null, "clip_sample": false
        }),
    );
    // Editors on Windows put a byte order mark in front.
    let scheduler = folder.join("scheduler/scheduler_config.json");
    let text = fs::read_to_string(&scheduler).expect("reads");
    fs::write(&scheduler, format!("\u{feff}{text}")).expect("writes");
    write_json(
        &folder.join("unet/config.json"),
        &json!({
            "_class_name": "UNet2DConditionModel", "act_fn": "silu", "attention_head_dim": 2,
            "block_out_channels": [8, 16], "center_input_sample": false, "cross_attention_dim": 8,
            "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "downsample_padding": 1,
            "flip_sin_to_cos": true, "freq_shift": 0, "in_channels": 4, "layers_per_block": 1,
            "mid_block_scale_factor": 1, "norm_eps": 1e-05, "norm_num_groups": 4, "out_channels": 4,
            "sample_size": 8, "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]
        }),
    );
    write_json(
        &folder.join("vae/config.json"),
        &json!({
            "_class_name": "AutoencoderKL", "act_fn": "silu", "block_out_channels": [8, 8],
            "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D"], "in_channels": 3, "latent_channels": 4,
            "layers_per_block": 1, "norm_num_groups": 4, "out_channels": 3, "sample_size": 16,
            "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"]
        }),
    );
    write_json(
        &folder.join("text_encoder/config.json"),
        &json!({
            "architectures": ["CLIPTextModel"], "hidden_act": "quick_gelu", "hidden_size": 8, "intermediate_size": 32,
            "layer_norm_eps": 1e-05, "max_position_embeddings": 10, "model_type": "clip_text_model",
            "num_attention_heads": 2, "num_hidden_layers": 1, "projection_dim": 8, "vocab_size": VOCAB
        }),
    );
    let (start, end) = (VOCAB - 2, VOCAB - 1);
    write_json(
        &folder.join("tokenizer/vocab.json"),
        &json!({ "!": 0, "<|startoftext|>": start, "<|endoftext|>": end }),
    );
    write_json(&folder.join("tokenizer/tokenizer_config.json"), &json!({ "pad_token": "<|endoftext|>" }));
    let merges = "#version: 0.2\ni n\nt h\na n\nr e\na r\ne r\nth e</w>\n";
    fs::write(folder.join("tokenizer/merges.txt"), merges).expect("writes");

    let config = UNet2DConditionConfig {
        block_out_channels: vec![8, 16],
        attention: vec![true, false],
        layers_per_block: 1,
        norm_num_groups: 4,
        cross_attention_dim: 8,
        num_heads: vec![2, 2],
        ..UNet2DConditionConfig::stable_diffusion_1()
    };
    let of_unet = tensors(|scope| UNet2DConditionModel::new(scope, &config));
    save(&folder.join("unet/diffusion_pytorch_model.safetensors"), &of_unet, dtype);
    let config = AutoencoderKLConfig {
        block_out_channels: vec![8, 8],
        norm_num_groups: 4,
        ..AutoencoderKLConfig::small()
    };
    let of_vae = tensors(|scope| AutoencoderKL::new(scope, &config));
    save(&folder.join("vae/diffusion_pytorch_model.safetensors"), &of_vae, dtype);
    let config =
        ClipTextConfig { context: 10, vocab: VOCAB, width: 8, heads: 2, layers: 1, embed: 8, causal: true };
    let of_text = hugging_face(tensors(|scope| ClipTextEncoder::new(scope, &config)));
    save(&folder.join("text_encoder/model.safetensors"), &of_text, dtype);
}

fn folder(dtype: DType) -> tempfile::TempDir {
    let place = tempfile::tempdir().expect("a folder");
    write_folder(place.path(), dtype);
    place
}

fn open(folder: &Path) -> std::result::Result<DiffusersPipeline, String> {
    let opened = DiffusersPipeline::open(folder, Arc::new(Context::new(1)), Precision::F32);
    opened.map_err(|error| error.to_string())
}

fn request(prompts: &[&str]) -> Request {
    Request {
        prompts: prompts.iter().map(|prompt| (*prompt).to_owned()).collect(),
        columns: 2,
        size: None,
        sampler: SamplerKind::DpmSolver,
        steps: 4,
        eta: 0.0,
        guidance: 7.5,
        negative: String::new(),
        seed: 3,
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn pictures_are_drawn_from_32_and_16_bits() {
    let (wide, half) = (folder(DType::F32), folder(DType::F16));
    let wide = open(wide.path()).expect("opens");
    assert!(wide.describe().contains("made for 16x16 pixels, predicts epsilon"), "{}", wide.describe());
    let pictures = wide.draw(&request(&["a red bird", "the sea"])).expect("draws");
    assert_eq!(pictures.iter().map(Vec::len).collect::<Vec<_>>(), [3 * 16 * 16; 4]);
    assert!(pictures.iter().flatten().all(|value| (-1.0..=1.0).contains(value)));
    assert!(distance(&pictures[0], &pictures[1]) > 1e-3, "columns have noise of their own");
    assert!(distance(&pictures[0], &pictures[2]) > 1e-6, "prompts matter");
    let alone = wide.draw(&Request { columns: 1, ..request(&["the sea"]) }).expect("draws");
    assert_eq!(alone[0], pictures[2], "a picture does not depend on others that are drawn with it");
    let of_sea = |guidance, negative: &str| {
        let request =
            Request { guidance, negative: negative.to_owned(), columns: 1, ..request(&["the sea"]) };
        wide.draw(&request).expect("draws").remove(0)
    };
    assert!(distance(&of_sea(7.5, "a red bird"), &alone[0]) > 1e-4, "a negative prompt matters");
    let off = distance(&of_sea(7.5, "the sea"), &of_sea(1.0, ""));
    assert!(off < 1e-5, "away from its own prompt a picture is as without guidance: {off}");
    let of =
        |prompt: &str| wide.draw(&Request { columns: 1, ..request(&[prompt]) }).expect("draws").remove(0);
    assert_eq!(of("the (sea:1)"), alone[0]);
    assert!(distance(&of("the (sea:4)"), &alone[0]) > 1e-4, "a weight of a part matters");
    let rounded =
        open(half.path()).expect("opens").draw(&request(&["a red bird", "the sea"])).expect("draws");
    let off = pictures.iter().zip(&rounded).map(|(a, b)| distance(a, b)).fold(0.0, f32::max);
    assert!(off > 0.0 && off < 0.05, "{off}");
    let larger = wide.draw(&Request { size: Some(24), ..request(&["a"]) }).expect("draws");
    assert_eq!(larger[0].len(), 3 * 24 * 24);
    for sampler in SamplerKind::ALL {
        wide.draw(&Request { sampler: *sampler, columns: 1, ..request(&["a"]) }).expect("draws");
    }
    let refused = wide.draw(&Request { size: Some(17), ..request(&["a"]) }).expect_err("odd").to_string();
    assert!(refused.contains("a multiple of 2"), "{refused}");
}

/// Weights of a folder as another version of the library would have saved them.
fn resave(
    folder: &Path,
    file: &str,
    change: impl FnOnce(Vec<(String, Tensor)>) -> Vec<(String, Tensor)>,
) -> PathBuf {
    let path = folder.join(file);
    let tensors = phalanx_tensor::io::load_safetensors(&path).expect("reads");
    save_safetensors(&path, &change(tensors), &[]).expect("writes");
    path
}

#[test]
fn older_names_and_several_files_are_the_same_weights() {
    let (plain, other) = (folder(DType::F32), folder(DType::F32));
    resave(other.path(), "vae/diffusion_pytorch_model.safetensors", |tensors| {
        let old = |(name, tensor): (String, Tensor)| {
            let names = [
                (".to_q.", ".query."),
                (".to_k.", ".key."),
                (".to_v.", ".value."),
                (".to_out.0.", ".proj_attn."),
            ];
            let renamed = names.iter().fold(name.clone(), |name, (new, old)| name.replace(new, old));
            // As a 1×1 convolution.
            let tensor = match (renamed == name, tensor.dims()) {
                (false, &[rows, columns]) => tensor.reshape((rows, columns, 1, 1)).expect("as many"),
                _ => tensor,
            };
            (renamed, tensor)
        };
        tensors.into_iter().map(old).collect()
    });
    let unet = other.path().join("unet");
    let whole = unet.join("diffusion_pytorch_model.safetensors");
    let tensors = phalanx_tensor::io::load_safetensors(&whole).expect("reads");
    fs::remove_file(&whole).expect("removes");
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let mut map = serde_json::Map::new();
    for (at, part) in [first, second].into_iter().enumerate() {
        let name = format!("diffusion_pytorch_model-0000{}-of-00002.safetensors", at + 1);
        save_safetensors(&unet.join(&name), part, &[]).expect("writes");
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), Value::from(name.as_str()))));
    }
    write_json(&unet.join("diffusion_pytorch_model.safetensors.index.json"), &json!({ "weight_map": map }));
    let draw = |folder: &Path| open(folder).expect("opens").draw(&request(&["a bird"])).expect("draws");
    assert_eq!(draw(plain.path()), draw(other.path()));
    fs::remove_file(unet.join("diffusion_pytorch_model-00002-of-00002.safetensors")).expect("removes");
    let said = open(other.path()).expect_err("a part is missing");
    assert!(said.contains("diffusion_pytorch_model-00002-of-00002.safetensors, which"), "{said}");
}

#[test]
fn prefixes_of_wrappers_and_tensors_that_are_no_weights_stop_nothing() {
    let (plain, other) = (folder(DType::F32), folder(DType::F32));
    for (part, prefix) in [
        ("unet/diffusion_pytorch_model.safetensors", "module._orig_mod."),
        ("vae/diffusion_pytorch_model.safetensors", "_orig_mod."),
        ("text_encoder/model.safetensors", "model."),
    ] {
        resave(other.path(), part, |tensors| {
            let wrapped = tensors.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor));
            let mut tensors: Vec<_> = wrapped.collect();
            let steps = Tensor::zeros((), DType::I64, &candle_core::Device::Cpu).expect("small");
            tensors.push((format!("{prefix}steps"), steps));
            tensors
        });
    }
    let draw = |folder: &Path| open(folder).expect("opens").draw(&request(&["a bird"])).expect("draws");
    assert_eq!(draw(plain.path()), draw(other.path()));
    let unet = other.path().join("unet");
    fs::rename(unet.join("diffusion_pytorch_model.safetensors"), unet.join("diffusion_pytorch_model.bin"))
        .expect("renames");
    let said = open(other.path()).expect_err("another format");
    assert!(said.contains("diffusion_pytorch_model.bin: it is of torch.save; convert it"), "{said}");
}

/// A change to a folder, and words of what is said of it.
type Damage = (fn(&Path), &'static [&'static str]);

/// Sets a key of a JSON file.
fn set(folder: &Path, file: &str, key: &str, value: Value) {
    let path = folder.join(file);
    let text = fs::read_to_string(&path).expect("reads");
    let mut json: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).expect("JSON");
    json[key] = value;
    write_json(&path, &json);
}

#[test]
fn what_is_missing_or_not_computed_is_named() {
    let damages: &[Damage] = &[
        (
            |folder| fs::remove_file(folder.join("model_index.json")).expect("removes"),
            &["lacks model_index.json"],
        ),
        (
            |folder| fs::remove_file(folder.join("unet/config.json")).expect("removes"),
            &["unet lacks config.json"],
        ),
        (
            |folder| {
                fs::remove_file(folder.join("vae/diffusion_pytorch_model.safetensors")).expect("removes");
            },
            &["vae lacks diffusion_pytorch_model.safetensors", "fp16"],
        ),
        (
            |folder| fs::remove_file(folder.join("tokenizer/merges.txt")).expect("removes"),
            &["tokenizer lacks merges.txt"],
        ),
        (
            |folder| set(folder, "model_index.json", "_class_name", json!("StableDiffusionXLPipeline")),
            &["model_index.json", "StableDiffusionXLPipeline", "expected \"StableDiffusionPipeline\""],
        ),
        (
            |folder| set(folder, "unet/config.json", "act_fn", json!("gelu")),
            &["unet/config.json", "`act_fn`", "gelu"],
        ),
        (
            |folder| set(folder, "unet/config.json", "class_embed_type", json!("timestep")),
            &["unet/config.json", "`class_embed_type`"],
        ),
        (
            |folder| {
                set(folder, "unet/config.json", "up_block_types", json!(["CrossAttnUpBlock2D", "UpBlock2D"]));
            },
            &["do not mirror each other"],
        ),
        (
            |folder| set(folder, "unet/config.json", "cross_attention_dim", json!(16)),
            &["`cross_attention_dim` is 16", "`hidden_size` 8"],
        ),
        (
            |folder| set(folder, "unet/config.json", "block_out_channels", json!([8, 24])),
            &["unet", "the configuration asks for"],
        ),
        (
            |folder| set(folder, "unet/config.json", "layers_per_block", json!(2)),
            &["unet", "the weights lack"],
        ),
        (
            |folder| set(folder, "text_encoder/config.json", "hidden_act", json!("gelu")),
            &["text_encoder/config.json", "`hidden_act`", "quick_gelu"],
        ),
        (
            |folder| set(folder, "text_encoder/config.json", "num_hidden_layers", json!(2)),
            &["the weights lack"],
        ),
        (
            |folder| set(folder, "tokenizer/vocab.json", "<|endoftext|>", json!(49407)),
            &["vocab.json", "<|endoftext|>", "expected 519"],
        ),
        (
            |folder| set(folder, "scheduler/scheduler_config.json", "beta_schedule", json!("sigmoid")),
            &["scheduler_config.json", "sigmoid", "scaled_linear"],
        ),
        // What asks for more memory than there is.
        (
            |folder| {
                set(
                    folder,
                    "scheduler/scheduler_config.json",
                    "num_train_timesteps",
                    json!(1_000_000_000_000_000_000_u64),
                );
            },
            &["scheduler_config.json", "`num_train_timesteps` is 1000000000000000000", "from 1 to 1048576"],
        ),
        (
            |folder| set(folder, "unet/config.json", "block_out_channels", json!([524_288, 1_048_576])),
            &["unet", "the configuration asks for", "and the weights have"],
        ),
        (
            |folder| set(folder, "text_encoder/config.json", "num_hidden_layers", json!(1_000_000)),
            &["text_encoder/config.json", "`num_hidden_layers` is 1000000", "from 1 to 1024"],
        ),
        (
            |folder| set(folder, "vae/config.json", "latent_channels", json!(0)),
            &["vae/config.json", "`latent_channels` is 0", "from 1 to 1048576"],
        ),
        (
            |folder| {
                let path = folder.join("unet/diffusion_pytorch_model.safetensors");
                let bytes = fs::read(&path).expect("reads");
                fs::write(&path, &bytes[..bytes.len() - 7]).expect("writes");
            },
            &["unet/diffusion_pytorch_model.safetensors", "not a whole safetensors file"],
        ),
        (
            |folder| {
                resave(folder, "unet/diffusion_pytorch_model.safetensors", |mut tensors| {
                    let twin = tensors[0].1.clone();
                    tensors.push(("strange.weight".to_owned(), twin));
                    tensors
                });
            },
            &["unet", "the weights have `strange.weight`"],
        ),
    ];
    for (damage, words) in damages {
        let place = folder(DType::F32);
        damage(place.path());
        let said = open(place.path()).expect_err("damaged");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    }
}

#[test]
fn the_program_draws_from_a_folder() {
    let place = folder(DType::F16);
    let run = |line: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(line.split(' ')).args(["--prompt", "a red bird"]).current_dir(place.path());
        command.output().expect("runs")
    };
    let output = run("sample --diffusers . --out birds.png --steps 3 --columns 2 --seed 4 --precision bf16");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let picture = image::open(place.path().join("birds.png")).expect("a picture");
    assert_eq!(
        (picture.width(), picture.height()),
        (4 * 38, 4 * 20 + 10),
        "pictures of 16 pixels within borders of 2"
    );
    // Each of several seeds has a column: the first picture that it draws alone.
    let pixels = |seeds: &str, left: u32| {
        let plain = "--steps 3 --scale 1 --no-captions";
        let output = run(&format!("sample --diffusers . --out seeds.png {plain} {seeds}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("3 steps each"));
        let grid = image::open(place.path().join("seeds.png")).expect("a picture").to_rgb8();
        image::imageops::crop_imm(&grid, left, 2, 16, 16).to_image()
    };
    assert_eq!(pixels("--seeds 7,4", 20), pixels("--seed 4 --columns 1", 2));
    assert_ne!(pixels("--seeds 7,4", 2), pixels("--seed 4 --columns 1", 2));
    let output = run("sample --diffusers gone --out birds.png");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("gone lacks model_index.json"));
    let output = run("sample --out birds.png");
    assert_eq!(output.status.code(), Some(2));
}
