//! The pipeline of Stable Diffusion: texts to images.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_data::ClipTokenizer;
use phalanx_models::clip::{is_text_weight, openai_names};
use phalanx_models::diffusion::samplers::{Guidance, SamplerConfig, SamplerKind, noise_of_samples};
use phalanx_models::diffusion::{AutoencoderKL, SamplingLoop, UNet2DConditionModel};
use phalanx_models::{ClipTextConfig, ClipTextEncoder};
use phalanx_tensor::{
    BuildOptions, Context, Key, ParamStore, Precision, Result as TensorResult, Scope, Session, StoreBuilder,
    Tape, Value, ops,
};
use serde_json::json;

use super::DiffusersError;
use super::config::{self, Scheduler};
use super::json::Json;
use super::weights::Weights;
use crate::weighted_prompt::{WeightedPrompt, weigh_tokens};

/// A request for samples.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompts.
    pub prompts: Vec<String>,
    /// Images for each prompt, each from its own noise.
    pub columns: usize,
    /// Height and width in pixels; `None` for the training size of the U-Net.
    pub size: Option<usize>,
    /// The sampler.
    pub sampler: SamplerKind,
    /// The number of evaluations of the network.
    pub steps: usize,
    /// The noise that a DDIM step adds, from 0 to 1.
    pub eta: f64,
    /// The scale of classifier-free guidance; 1 = off.
    pub guidance: f64,
    /// A text that images are guided away from; empty for none.
    pub negative: String,
    /// The seed of the noise.
    pub seed: u64,
}

/// A Stable Diffusion pipeline, loaded from a folder.
#[derive(Debug)]
pub struct DiffusersPipeline {
    tokenizer: ClipTokenizer,
    /// True if texts are padded with their end token, and not with zeros.
    pads_with_end: bool,
    text_config: ClipTextConfig,
    text: (ClipTextEncoder, ParamStore),
    unet: (UNet2DConditionModel, ParamStore),
    vae: (AutoencoderKL, ParamStore),
    /// The scaling factor of latent images.
    scaling_factor: f64,
    /// The size of the latent images on which the U-Net was trained.
    sample_size: usize,
    scheduler: Scheduler,
    context: Arc<Context>,
    precision: Precision,
}

/// Builds a network and loads all parameters from files, except `own`, which the files may lack.
fn built<N>(
    weights: &Weights,
    own: usize,
    build: impl Fn(&Scope) -> TensorResult<N>,
) -> Result<(N, ParamStore), DiffusersError> {
    let store = |fill| -> TensorResult<(N, ParamStore)> {
        let builder = StoreBuilder::new(BuildOptions { fill, ..BuildOptions::default() });
        // Nothing is learnt here.
        let network = build(&builder.root().frozen())?;
        Ok((network, builder.build()?))
    };
    // Allocate only if the files have about as many parameters; missing ones are then reported by name.
    let (asked, found) = (store(false)?.1.num_parameters(), weights.elements());
    let most = found.saturating_mul(2).saturating_add(own).saturating_add(1 << 20);
    if asked > most {
        let problem = format!("the configuration asks for {asked} parameters, and the weights have {found}");
        return Err(weights.wrong(problem));
    }
    Ok(store(true)?)
}

impl DiffusersPipeline {
    /// Loads a folder. Weights are f32; `precision` is the type of matrix products and activations.
    ///
    /// # Errors
    /// [`DiffusersError`] names the file that is missing, unreadable, or needs an unsupported computation.
    pub fn open(folder: &Path, context: Arc<Context>, precision: Precision) -> Result<Self, DiffusersError> {
        let index = Json::read(&folder.join("model_index.json"))?;
        index.only(&[
            ("_class_name", json!("StableDiffusionPipeline")),
            ("unet", json!(["diffusers", "UNet2DConditionModel"])),
            ("vae", json!(["diffusers", "AutoencoderKL"])),
            ("text_encoder", json!(["transformers", "CLIPTextModel"])),
        ])?;
        let part = |name: &str| folder.join(name);
        let scheduler = config::scheduler(&Json::read(&part("scheduler").join("scheduler_config.json"))?)?;
        let text_json = Json::read(&part("text_encoder").join("config.json"))?;
        let text_config = config::text(&text_json)?;
        let (tokenizer, pads_with_end) = tokenizer(&part("tokenizer"), text_config.vocab)?;
        let unet_json = Json::read(&part("unet").join("config.json"))?;
        let (unet_config, sample_size) = config::unet(&unet_json)?;
        let vae_json = Json::read(&part("vae").join("config.json"))?;
        let (vae_config, scaling_factor) = config::autoencoder(&vae_json)?;
        if unet_config.cross_attention_dim != text_config.width {
            let (of_unet, of_text) = (unet_config.cross_attention_dim, text_config.width);
            let problem =
                format!("`cross_attention_dim` is {of_unet}, and the text encoder's `hidden_size` {of_text}");
            return Err(DiffusersError::unfit(&unet_json.path, problem));
        }
        if unet_config.in_channels != vae_config.latent_channels
            || unet_config.out_channels != unet_config.in_channels
        {
            let (found, latent) = (unet_config.in_channels, vae_config.latent_channels);
            let problem =
                format!("`in_channels` is {found}, and the autoencoder's `latent_channels` {latent}");
            return Err(DiffusersError::unfit(&unet_json.path, problem));
        }

        let mut weights = Weights::open(&part("unet"), "diffusion_pytorch_model")?;
        let unet = built(&weights, 0, |scope| UNet2DConditionModel::new(scope, &unet_config))?;
        weights.fill(&unet.1, |name| vec![name.to_owned()])?;
        let mut weights = Weights::open(&part("vae"), "diffusion_pytorch_model")?;
        let vae = built(&weights, 0, |scope| AutoencoderKL::new(scope, &vae_config))?;
        weights.fill(&vae.1, |name| vec![name.to_owned(), old_attention_name(name)])?;
        let mut weights = Weights::open(&part("text_encoder"), "model")?;
        // The pipeline does not use the projection.
        let projection = text_config.width * text_config.embed;
        let text = built(&weights, projection, |scope| ClipTextEncoder::new(scope, &text_config))?;
        fill_text(&text.1, &mut weights)?;
        Ok(Self {
            tokenizer,
            pads_with_end,
            text_config,
            text,
            unet,
            vae,
            scaling_factor,
            sample_size,
            scheduler,
            context,
            precision,
        })
    }

    /// Describes the loaded weights.
    pub fn describe(&self) -> String {
        let count: usize =
            [&self.unet.1, &self.vae.1, &self.text.1].iter().map(|store| store.num_parameters()).sum();
        let size = self.sample_size * self.vae.0.config().factor();
        let prediction = self.scheduler.prediction;
        format!("{count} parameters, made for {size}x{size} pixels, predicts {prediction}")
    }

    /// Returns the image size of a request in pixels.
    pub fn size(&self, request: &Request) -> usize {
        request.size.unwrap_or(self.sample_size * self.vae.0.config().factor())
    }

    /// Samples the images of a request, prompt by prompt: `[3, size, size]`, planar in [-1, 1]. Each image depends only
    /// on its prompt, its column and the seed.
    ///
    /// # Errors
    /// If the size is not divisible by the downsampling factor, or there are more steps than in the schedule.
    pub fn draw(&self, request: &Request) -> Result<Vec<Vec<f32>>, DiffusersError> {
        let session = Session { precision: self.precision, ..Session::evaluation(self.context.clone()) };
        let tape = Tape::forward_only(Session { key: Key::new(request.seed).stream("samples"), ..session });
        let factor = self.vae.0.config().factor();
        let size = self.size(request);
        if !size.is_multiple_of(factor) {
            let problem = format!("pictures of {size} pixels; expected a multiple of {factor}");
            return Err(phalanx_tensor::TensorError::Shape { op: "sample", problem }.into());
        }
        let dims = [self.unet.0.config().in_channels, size / factor, size / factor];
        let key = tape.session().key;
        let guidance = Guidance { scale: request.guidance, rescale: 0.0 };
        let untold = if guidance.needs_both() { Some(self.prompt(&tape, &request.negative)?) } else { None };
        let mut pictures = Vec::with_capacity(request.prompts.len() * request.columns);
        for prompt in &request.prompts {
            let told = self.prompt(&tape, prompt)?;
            for column in 0..request.columns as u64 {
                let config = SamplerConfig {
                    eta: request.eta,
                    steps_offset: self.scheduler.steps_offset,
                    set_alpha_to_one: self.scheduler.set_alpha_to_one,
                    ..SamplerConfig::new(request.sampler, request.steps)
                };
                let mut sampler = config.sampler(&self.scheduler.schedule, self.scheduler.prediction)?;
                let noise = noise_of_samples(&tape, key.stream("start"), &[column], &dims)?;
                let mut predict = |x: &Value, timestep: f64| {
                    let with = self.unet.0.forward(&tape, x, &[timestep], &told)?;
                    match &untold {
                        Some(untold) => {
                            let without = self.unet.0.forward(&tape, x, &[timestep], untold)?;
                            guidance.apply(&tape, &without, &with)
                        }
                        None => Ok(with),
                    }
                };
                let mut of_step = |at: usize| {
                    noise_of_samples(&tape, key.stream("step").index(at as u64), &[column], &dims)
                };
                let walk = SamplingLoop { sampler: sampler.as_mut(), noise, initial: None };
                let latent = walk.run(&tape, &mut predict, &mut of_step, &mut |_, _, _| Ok(()))?;
                let latent = ops::scale(&tape, &latent, 1.0 / self.scaling_factor)?;
                let picture = self.vae.0.decode(&tape, &latent)?.to_host()?.to_dtype(DType::F32)?;
                pictures.push(picture.clamp(-1.0_f32, 1.0)?.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(pictures)
    }

    /// Encodes a prompt, whose parts may have weights. Returns the hidden states of its tokens, [1, context, width].
    fn prompt(&self, tape: &Tape, prompt: &str) -> Result<Value, DiffusersError> {
        let prompt = WeightedPrompt::new(prompt);
        let tokens = self.tokens(tape, &prompt.text())?;
        if !prompt.is_weighted() {
            return Ok(tokens);
        }
        let empty = self.tokens(tape, "")?;
        Ok(weigh_tokens(tape, &tokens, &empty, &[prompt], &self.tokenizer)?)
    }

    /// Encodes a text. Returns the hidden states of its tokens, [1, context, width].
    fn tokens(&self, tape: &Tape, text: &str) -> Result<Value, DiffusersError> {
        let context = self.text_config.context;
        let mut ids = match self.tokenizer.encode(text, context) {
            Ok(ids) => ids,
            Err(error) => {
                tracing::warn!("{error}; its end is cut off");
                self.tokenizer.encode_truncated(text, context)
            }
        };
        if self.pads_with_end {
            let end = self.tokenizer.end();
            let first = ids.iter().position(|id| *id == end).unwrap_or(context);
            ids.iter_mut().skip(first).for_each(|id| *id = end);
        }
        let ids = Tensor::from_vec(ids, (1, context), &Device::Cpu)?;
        Ok(self.text.0.forward_whole(tape, &ids)?.tokens)
    }
}

/// Returns the name of an attention parameter in files of old versions of diffusers.
fn old_attention_name(name: &str) -> String {
    [(".to_q.", ".query."), (".to_k.", ".key."), (".to_v.", ".value."), (".to_out.0.", ".proj_attn.")]
        .iter()
        .fold(name.to_owned(), |name, (new, old)| name.replace(new, old))
}

/// Loads the weights of the text encoder, with Hugging Face's names and without a projection.
fn fill_text(store: &ParamStore, weights: &mut Weights) -> Result<(), DiffusersError> {
    let tensors = weights.read_all(is_text_weight)?;
    let wrong = |problem: String| weights.wrong(problem);
    let named = openai_names(tensors).map_err(|error| wrong(error.to_string()))?;
    let report = store.load_state_dict(named.iter().map(|(name, tensor)| (name.as_str(), tensor)));
    let report =
        report.map_err(|error| wrong(format!("{error}; config.json must be that of the weights")))?;
    if let Some(missing) = report.missing.iter().find(|name| *name != "text_projection") {
        return Err(wrong(format!("the weights lack `{missing}`")));
    }
    match report.unexpected.first() {
        Some(strange) => {
            Err(wrong(format!("the weights have `{strange}`, which the configuration does not")))
        }
        None => Ok(()),
    }
}

/// Loads the tokenizer of `vocab` tokens. The flag is true if it pads with the end token.
fn tokenizer(folder: &Path, vocab: usize) -> Result<(ClipTokenizer, bool), DiffusersError> {
    let merges: PathBuf = folder.join("merges.txt");
    if !merges.is_file() {
        return Err(DiffusersError::Missing { folder: folder.to_owned(), wanted: "merges.txt".to_owned() });
    }
    let tokenizer = ClipTokenizer::from_merges_text(&merges, vocab)?;
    let ids = Json::read(&folder.join("vocab.json"))?;
    for (mark, id) in [("<|startoftext|>", tokenizer.start()), ("<|endoftext|>", tokenizer.end())] {
        if ids.get(mark).and_then(serde_json::Value::as_u64) != Some(id.into()) {
            let found = ids.get(mark).map_or("missing".to_owned(), ToString::to_string);
            return Err(DiffusersError::unfit(&ids.path, format!("`{mark}` is {found}; expected {id}")));
        }
    }
    let settings = folder.join("tokenizer_config.json");
    let pad = match settings.is_file() {
        true => {
            let settings = Json::read(&settings)?;
            let pad = settings.get("pad_token");
            let word = pad.and_then(|pad| pad.as_str().or_else(|| pad["content"].as_str()));
            word.unwrap_or("<|endoftext|>").to_owned()
        }
        false => "<|endoftext|>".to_owned(),
    };
    Ok((tokenizer, pad == "<|endoftext|>"))
}
