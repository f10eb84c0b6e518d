//! The models, and a rank's part of the batch.

use std::sync::Arc;

use anyhow::Result;
use candle_core::{Device, Tensor};
use clap::ValueEnum;
use phalanx_models::diffusion::{UNet2DConditionConfig, UNet2DConditionModel};
use phalanx_models::{
    ClipTextConfig, CvaeConfig, MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig, ResNetVariant,
    TextToImage, VisionTransformer, VisionTransformerConfig,
};
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::{BuildOptions, ComputeDevice, ParamLayout, ParamStore, StoreBuilder, Tape, Value};

use super::TrainArgs;

/// The models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Model {
    Resnet18,
    Resnet34,
    Resnet50,
    Mobilenetv2,
    /// The Vision Transformer ViT-B/16, whose authors use 224x224
    #[value(name = "vit-b16")]
    VitB16,
    Cvae,
    /// diffusers' U-Net of 64, 128 and 256 channels with 16 text tokens, on latent images of 4 channels and this size
    Unet,
    /// StackGAN's first stage, GF 128, DF 64: a step of discriminator and generator; the authors use 64x64
    Stackgan1,
    /// StackGAN's second stage, GF 128, DF 64, over a first stage at a quarter of the size; the authors use 256x256
    Stackgan2,
    /// GPT-2 of 124 million parameters, on --tokens tokens of each text
    Gpt2,
    /// GPT-2 of 6 layers of 384 with 6 heads and its vocabulary of 50,257
    GptSmall,
    /// GPT-2 of 4 layers of 1024 with 16 heads and its vocabulary of 50,257
    GptWide,
    /// A decoder like Llama's of 8 layers of 384, 6 heads that share 2, a vocabulary of 20,480, tied
    #[value(name = "llama-20m")]
    Llama20m,
    /// BERT-base with its head on 15 % of --tokens tokens
    Bert,
    /// The Transformer's base model, 6 + 6 layers of 512, 8 heads, vocabulary 32,000, on --tokens tokens of both sides
    Translation,
}

pub(super) type Forward = Box<dyn Fn(&Tape, LossDivisor) -> phalanx_tensor::Result<Value>>;

/// Returns the options of parameters, which decide the size of messages.
pub(super) fn options(args: &TrainArgs, device: &ComputeDevice) -> BuildOptions {
    BuildOptions { bucket_bytes: args.bucket_kib << 10, device: device.clone(), ..BuildOptions::default() }
}

/// Builds a rank's model of images, with the layout of its parameters, and its part of the batch.
pub(super) fn build(
    args: &TrainArgs,
    device: &ComputeDevice,
    batch: usize,
    layout: Option<Arc<dyn ParamLayout>>,
) -> Result<(ParamStore, Forward)> {
    let builder = StoreBuilder::new(BuildOptions { layout, ..options(args, device) });
    let put = |tensor: &Tensor| Ok::<_, anyhow::Error>(Value::constant(device.put(tensor)?));
    let size = args.image_size;
    let images = put(&Tensor::rand(-1.0_f32, 1.0, (batch, 3, size, size), &Device::Cpu)?)?;
    let labels: Vec<u32> = (0..batch as u32).map(|i| i % 10).collect();
    let resnet = |variant| ResNetConfig { cifar_stem: args.cifar_stem, ..ResNetConfig::new(variant, 10) };
    let forward: Forward = match args.model() {
        Model::Resnet18 | Model::Resnet34 | Model::Resnet50 => {
            let variant = match args.model() {
                Model::Resnet34 => ResNetVariant::R34,
                Model::Resnet50 => ResNetVariant::R50,
                _ => ResNetVariant::R18,
            };
            let model = ResNet::new(&builder.root(), &resnet(variant))?;
            Box::new(move |tape, over| {
                loss::cross_entropy(tape, &model.forward(tape, &images)?, &labels, 0.0, over)
            })
        }
        Model::Mobilenetv2 => {
            let config = MobileNetV2Config { cifar_stem: args.cifar_stem, ..MobileNetV2Config::new(10) };
            let model = MobileNetV2::new(&builder.root(), &config)?;
            Box::new(move |tape, over| {
                loss::cross_entropy(tape, &model.forward(tape, &images)?, &labels, 0.0, over)
            })
        }
        Model::VitB16 => {
            let config = VisionTransformerConfig { image_size: size, ..VisionTransformerConfig::base(10) };
            let model = VisionTransformer::new(&builder.root(), &config)?;
            Box::new(move |tape, over| {
                loss::cross_entropy(tape, &model.forward(tape, &images)?, &labels, 0.0, over)
            })
        }
        Model::Cvae => cvae(&builder, size, batch, images)?,
        Model::Unet => unet(&builder, size, batch, &put)?,
        Model::Stackgan1 | Model::Stackgan2 => anyhow::bail!("StackGAN has two losses"),
        _ => anyhow::bail!("a language model has no images"),
    };
    Ok((builder.build()?, forward))
}

/// Builds the conditional variational autoencoder with a small CLIP text encoder.
fn cvae(builder: &StoreBuilder, size: usize, batch: usize, images: Value) -> Result<Forward> {
    let text = ClipTextConfig::small();
    let cvae = CvaeConfig { image_size: size, widths: vec![32, 64, 128], latent: 64, text_dim: text.embed };
    let model = TextToImage::new(&builder.root(), &text, &cvae, false)?;
    let end = text.vocab as u32 - 1;
    let ids = (0..batch as u32).flat_map(|i| (0..16).map(move |t| if t == 15 { end } else { i * 7 + t }));
    let ids = Tensor::from_vec(ids.collect::<Vec<u32>>(), (batch, 16), &Device::Cpu)?;
    Ok(Box::new(move |tape, over| {
        let out = model.forward(tape, &images, &ids)?;
        Ok(out.loss(tape, &images, (1e-4, 1.0), over)?.total)
    }))
}

/// Builds the U-Net; `put` copies a tensor to the device.
fn unet(
    builder: &StoreBuilder,
    size: usize,
    batch: usize,
    put: &dyn Fn(&Tensor) -> Result<Value>,
) -> Result<Forward> {
    let config = UNet2DConditionConfig {
        block_out_channels: vec![64, 128, 256],
        attention: vec![false, true, true],
        layers_per_block: 2,
        norm_num_groups: 32,
        num_heads: vec![8; 3],
        ..UNet2DConditionConfig::small(4, 64)
    };
    let model = UNet2DConditionModel::new(&builder.root(), &config)?;
    let random = |dims: &[usize]| put(&Tensor::rand(-1.0_f32, 1.0, dims, &Device::Cpu)?);
    let (sample, target) = (random(&[batch, 4, size, size])?, random(&[batch, 4, size, size])?);
    let text = random(&[batch, 16, 64])?;
    let times: Vec<f64> = (0..batch).map(|i| (i * 37 % 1000) as f64).collect();
    Ok(Box::new(move |tape, over| {
        loss::mse(tape, &model.forward(tape, &sample, &times, &text)?, &target, over)
    }))
}
