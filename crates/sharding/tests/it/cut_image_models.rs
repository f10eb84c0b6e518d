//! Models of images whose layers are cut over ranks.

use candle_core::{DType, Device, Tensor};
use phalanx_models::clip::ImageTowerConfig;
use phalanx_models::diffusion::{AutoencoderKL, AutoencoderKLConfig};
use phalanx_models::stackgan::Discriminator;
use phalanx_models::{
    Clip, ClipTextConfig, CvaeConfig, MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig, ResNetVariant,
    StackGanConfig, StageOneGenerator, StageTwoGenerator, TextToImage, VisionTransformer,
    VisionTransformerConfig,
};
use phalanx_tensor::loss::LossDivisor;
use phalanx_tensor::{Key, Result, Scope, Tape, TensorPlan, Value, ops};

use crate::cut_case::{Case, Loss, case, ids};

/// Normal numbers by name, f64.
fn normal(name: &str, dims: &[usize]) -> Result<Value> {
    let mut numbers = vec![0.0; dims.iter().product()];
    Key::new(6).stream(name).normal(0, &mut numbers);
    Ok(Value::constant(Tensor::from_vec(numbers, dims, &Device::Cpu)?.to_dtype(DType::F64)?))
}

/// A loss that every element of a value counts in.
fn weighed(tape: &Tape, x: &Value) -> Result<Value> {
    ops::mean(tape, &ops::mul(tape, x, &normal("weights", x.dims())?)?)
}

fn resnet(variant: ResNetVariant) -> ResNetConfig {
    ResNetConfig { width: 5, cifar_stem: true, ..ResNetConfig::new(variant, 4) }
}

/// The classes of images by a ResNet.
fn residual(scope: &Scope, variant: ResNetVariant) -> Result<Loss> {
    let model = ResNet::new(scope, &resnet(variant))?;
    Ok(Box::new(move |tape| weighed(tape, &model.forward(tape, &normal("images", &[3, 3, 16, 16])?)?)))
}

fn mobile() -> MobileNetV2Config {
    MobileNetV2Config { width_multiplier: 0.25, dropout: 0.0, cifar_stem: true, ..MobileNetV2Config::new(4) }
}

fn vision_transformer() -> VisionTransformerConfig {
    VisionTransformerConfig {
        image_size: 8,
        patch_size: 4,
        width: 12,
        layers: 2,
        heads: 4,
        inner: 10,
        dropout: 0.1,
        attention_dropout: 0.1,
        ..VisionTransformerConfig::base(3)
    }
}

fn text() -> ClipTextConfig {
    ClipTextConfig { context: 6, vocab: 514, width: 8, heads: 4, layers: 1, embed: 6, causal: true }
}

fn cvae() -> CvaeConfig {
    CvaeConfig { image_size: 16, widths: vec![16, 16, 16], latent: 3, text_dim: text().embed }
}

fn text_to_image(scope: &Scope) -> Result<Loss> {
    let model = TextToImage::new(scope, &text(), &cvae(), false)?;
    Ok(Box::new(move |tape| {
        let images = normal("images", &[2, 3, 16, 16])?;
        let output = model.forward(tape, &images, &ids(2, 6, 514))?;
        Ok(output.loss(tape, &images, (0.1, 0.5), LossDivisor::Batch)?.total)
    }))
}

fn tower() -> ImageTowerConfig {
    ImageTowerConfig { widths: vec![16, 16] }
}

fn contrastive(scope: &Scope) -> Result<Loss> {
    let model = Clip::new(scope, &text(), &tower())?;
    Ok(Box::new(move |tape| {
        let output = model.forward(tape, &normal("images", &[3, 3, 8, 8])?, &ids(3, 6, 514))?;
        output.loss(tape, LossDivisor::Batch)
    }))
}

fn autoencoder() -> AutoencoderKLConfig {
    AutoencoderKLConfig {
        block_out_channels: vec![8, 16],
        norm_num_groups: 4,
        ..AutoencoderKLConfig::small()
    }
}

fn latent_images(scope: &Scope) -> Result<Loss> {
    let model = AutoencoderKL::new(scope, &autoencoder())?;
    Ok(Box::new(move |tape| {
        let images = normal("images", &[2, 3, 8, 8])?;
        let latent = model.encode(tape, &images)?;
        let made = model.decode(tape, &latent.sample(tape, &normal("noise", &[2, 4, 4, 4])?)?)?;
        ops::add(
            tape,
            &weighed(tape, &made)?,
            &ops::scale(tape, &latent.kl(tape, LossDivisor::Batch)?, 0.01)?,
        )
    }))
}

fn gan() -> StackGanConfig {
    StackGanConfig {
        text_dim: 5,
        condition_dim: 4,
        z_dim: 3,
        gf_dim: 8,
        df_dim: 3,
        residual_blocks: 1,
        stage_one_size: 16,
        stage_two_size: 32,
        ..StackGanConfig::new()
    }
}

fn stage_one(scope: &Scope) -> Result<Loss> {
    let model = StageOneGenerator::new(scope, &gan())?;
    Ok(Box::new(move |tape| {
        let made =
            model.forward(tape, &normal("text", &[3, 5])?, &normal("z", &[3, 3])?, &normal("c", &[3, 4])?)?;
        weighed(tape, &made.image)
    }))
}

fn stage_two(scope: &Scope) -> Result<Loss> {
    let model = StageTwoGenerator::new(scope, &gan())?;
    Ok(Box::new(move |tape| {
        let small = normal("small", &[2, 3, 16, 16])?;
        weighed(tape, &model.forward(tape, &small, &normal("text", &[2, 5])?, &normal("c", &[2, 4])?)?.image)
    }))
}

/// The logits of images of a stage with and without their conditions.
fn judged(model: Discriminator, size: usize) -> Loss {
    Box::new(move |tape| {
        let features = model.features(tape, &normal("images", &[3, 3, size, size])?)?;
        let logits = weighed(tape, &model.logits(tape, &features, &normal("c", &[3, 4])?)?)?;
        match model.logits_alone(tape, &features)? {
            Some(alone) => ops::add(tape, &logits, &weighed(tape, &alone)?),
            None => Ok(logits),
        }
    })
}

pub(crate) fn cases() -> Vec<Case> {
    let with_text = |plan: Result<TensorPlan>| Ok(text().tensor_plan()?.and(plan?));
    vec![
        case("resnet18", resnet(ResNetVariant::R18).tensor_plan(), &[1, 2, 3, 4], |scope| {
            residual(scope, ResNetVariant::R18)
        }),
        case("resnet50", resnet(ResNetVariant::R50).tensor_plan(), &[2, 3], |scope| {
            residual(scope, ResNetVariant::R50)
        }),
        case("mobilenetv2", mobile().tensor_plan(), &[1, 2, 3], |scope| {
            let model = MobileNetV2::new(scope, &mobile())?;
            Ok(Box::new(move |tape| {
                weighed(tape, &model.forward(tape, &normal("images", &[3, 3, 16, 16])?)?)
            }))
        }),
        case("vit", vision_transformer().tensor_plan(), &[1, 2, 3, 4], |scope| {
            let model = VisionTransformer::new(scope, &vision_transformer())?;
            Ok(Box::new(move |tape| {
                // The head begins with zeros.
                let (features, logits) =
                    model.features_and_logits(tape, &normal("images", &[3, 3, 8, 8])?)?;
                ops::add(tape, &weighed(tape, &features)?, &weighed(tape, &logits)?)
            }))
        }),
        case("cvae", with_text(cvae().tensor_plan()), &[1, 2, 4], text_to_image),
        case("clip", with_text(tower().tensor_plan()), &[1, 2, 4], contrastive),
        case("autoencoder", autoencoder().tensor_plan(), &[1, 2, 4], latent_images),
        case("stage I", gan().stage_one_plan(), &[1, 2, 3, 4], stage_one),
        case("stage II", gan().stage_two_plan(), &[1, 2, 3], stage_two),
        case("discriminator I", gan().discriminator_plan(16), &[1, 2, 3], |scope| {
            Ok(judged(Discriminator::stage_one(scope, &gan())?, 16))
        }),
        case("discriminator II", gan().discriminator_plan(32), &[1, 2, 3], |scope| {
            Ok(judged(Discriminator::stage_two(scope, &gan())?, 32))
        }),
    ]
}
