//! Diffusion networks: sizes of the named configurations, blocks, recomputation, refusals.

use std::sync::Arc;

use candle_core::DType;
use phalanx_models::diffusion::{
    AutoencoderKL, AutoencoderKLConfig, UNet2DConditionConfig, UNet2DConditionModel, UNet2DConfig,
    UNet2DModel,
};
use phalanx_tensor::loss::{LossDivisor, mse};
use phalanx_tensor::{
    Block, BuildOptions, Context, Key, ParamBucket, ParamStore, Recompute, Result, Scope, Session,
    StoreBuilder, Tape, Value,
};

use crate::harness::{self, evaluation_tape, numbers};

fn build<M>(fill: bool, model: impl FnOnce(&Scope) -> Result<M>) -> (M, ParamStore) {
    harness::build(BuildOptions { fill, ..BuildOptions::default() }, model)
}

fn random(name: &str, dims: &[usize]) -> Value {
    Value::constant(harness::random(Key::new(3).stream(name), dims, DType::F32))
}

fn small_conditioned() -> UNet2DConditionConfig {
    UNet2DConditionConfig {
        block_out_channels: vec![8, 16],
        num_heads: vec![2, 4],
        norm_num_groups: 4,
        transformer_layers_per_block: 2,
        ..UNet2DConditionConfig::small(4, 6)
    }
}

#[test]
fn named_configurations_have_the_sizes_of_the_published_weights() {
    let of = |config: &UNet2DConditionConfig| {
        build(false, |scope| UNet2DConditionModel::new(scope, config)).1.num_parameters()
    };
    assert_eq!(of(&UNet2DConditionConfig::stable_diffusion_1()), 859_520_964);
    assert_eq!(of(&UNet2DConditionConfig::stable_diffusion_2()), 865_910_724);
    let (_, store) = build(false, |scope| UNet2DModel::new(scope, &UNet2DConfig::ddpm_cifar10()));
    assert_eq!(store.num_parameters(), 35_746_307);
    let (_, store) =
        build(false, |scope| AutoencoderKL::new(scope, &AutoencoderKLConfig::stable_diffusion()));
    assert_eq!(store.num_parameters(), 83_653_863);
}

/// Checks that the blocks with parameters are those of `blocks`.
fn every_parameter_is_in_a_block(blocks: &[Arc<dyn Block>], store: &ParamStore) {
    let mut of_params: Vec<&str> = store.buckets().iter().flat_map(ParamBucket::blocks).collect();
    let mut named: Vec<&str> = blocks.iter().map(|block| block.name()).collect();
    of_params.sort_unstable();
    of_params.dedup();
    named.sort_unstable();
    assert_eq!(of_params, named);
}

#[test]
fn every_parameter_belongs_to_a_block_that_runs() {
    let pooled =
        UNet2DConditionConfig { projection_class_embeddings_input_dim: Some(5), ..small_conditioned() };
    let (model, store) = build(true, |scope| UNet2DConditionModel::new(scope, &pooled));
    assert!(store.params().iter().any(|param| param.name() == "class_embedding.weight"));
    every_parameter_is_in_a_block(&model.blocks(), &store);
    let (model, store) = build(true, |scope| UNet2DModel::new(scope, &UNet2DConfig::small(3)));
    every_parameter_is_in_a_block(&model.blocks(), &store);
    let (model, store) = build(true, |scope| AutoencoderKL::new(scope, &AutoencoderKLConfig::small()));
    every_parameter_is_in_a_block(&[model.encoder_blocks(), model.decoder_blocks()].concat(), &store);
}

#[test]
fn every_transformer_tells_its_attention_to_a_text() {
    let (model, _store) = build(true, |scope| UNet2DConditionModel::new(scope, &small_conditioned()));
    let (sample, text) = (random("sample", &[2, 4, 8, 8]), random("text", &[2, 3, 6]));
    let found = model.text_attention(&evaluation_tape(), &sample, &[7.0], &text).expect("fits");
    let mut names: Vec<&str> = found.iter().map(|attention| attention.name.as_str()).collect();
    names.sort_unstable();
    let transformers = model.blocks().iter().filter(|block| block.name().contains("attentions")).count();
    assert_eq!(names.len(), transformers);
    assert!(names.contains(&"mid_block.attentions.0"), "{names:?}");
    for attention in &found {
        let [height, width] = attention.size;
        assert_eq!(attention.shares.dims(), [2, height * width, 3], "{}", attention.name);
        for shares in numbers(&attention.shares).chunks_exact(3) {
            assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{}: {shares:?}", attention.name);
        }
    }
}

#[test]
fn recomputing_blocks_changes_no_bit() {
    let run = |recompute| {
        let config = UNet2DConditionConfig { dropout: 0.2, ..small_conditioned() };
        let (model, store) = build(true, |scope| UNet2DConditionModel::new(scope, &config));
        let session =
            Session { recompute, ..Session::training(Arc::new(Context::new(1)), Key::new(5).step(2)) };
        let tape = Tape::recording(session);
        let (sample, text) = (random("sample", &[2, 4, 8, 8]), random("text", &[2, 3, 6]));
        let output = model.forward(&tape, &sample, &[7.0, 400.0], &text).expect("fits");
        let loss = mse(&tape, &output, &random("target", &[2, 4, 8, 8]), LossDivisor::Batch).expect("fits");
        tape.backward(&loss).expect("sound");
        let grads = store.params().iter().map(|param| {
            let grad = param.grad().expect("built").unwrap_or_else(|| panic!("{} has none", param.name()));
            grad.flatten_all().and_then(|grad| grad.to_vec1::<f32>()).expect("f32")
        });
        (loss.tensor().expect("sound").to_scalar::<f32>().expect("f32"), grads.collect::<Vec<_>>())
    };
    let expected = run(Recompute::Never);
    assert!(
        expected.1.iter().all(|grad| grad.iter().any(|value| *value != 0.0)),
        "every parameter takes part"
    );
    assert!(run(Recompute::Every(1)) == expected, "every block runs again");
    assert!(run(Recompute::Every(3)) == expected, "every third block runs again");
}

#[test]
fn a_network_that_starts_at_zero_predicts_zero() {
    let config = UNet2DConfig { zero_init: true, ..UNet2DConfig::small(3) };
    let (model, _store) = build(true, |scope| UNet2DModel::new(scope, &config));
    let tape = evaluation_tape();
    let output = model.forward(&tape, &random("sample", &[1, 3, 8, 8]), &[3.0]).expect("fits");
    assert!(numbers(&output).iter().all(|value| *value == 0.0));
}

#[test]
fn images_larger_by_half_go_through_the_autoencoder() {
    let (model, _store) = build(true, |scope| AutoencoderKL::new(scope, &AutoencoderKLConfig::small()));
    let tape = evaluation_tape();
    let latent = model.encode(&tape, &random("images", &[1, 3, 12, 20])).expect("fits");
    assert_eq!(latent.mean.dims(), [1, 4, 6, 10]);
    assert_eq!(model.decode(&tape, &latent.mean).expect("fits").dims(), [1, 3, 12, 20]);
}

#[test]
fn mismatched_shapes_are_refused_with_a_description() {
    let tape = evaluation_tape();
    let (model, _store) = build(true, |scope| UNet2DConditionModel::new(scope, &small_conditioned()));
    let (sample, text) = (random("sample", &[2, 4, 8, 8]), random("text", &[2, 3, 6]));
    let refused = |sample: &Value, times: &[f64], text: &Value| {
        model.forward(&tape, sample, times, text).expect_err("does not fit").to_string()
    };
    assert!(refused(&sample, &[1.0; 3], &text).contains("3 timesteps for 2 samples"));
    assert!(refused(&random("odd", &[2, 4, 7, 8]), &[1.0], &text).contains("multiples of 2"));
    assert!(refused(&sample, &[1.0], &random("wide", &[2, 3, 7])).contains("expected [N, S, 6]"));
    let builder = StoreBuilder::new(BuildOptions::default());
    let wrong = |config: &UNet2DConditionConfig| {
        UNet2DConditionModel::new(&builder.root().pp(config.norm_num_groups), config)
            .expect_err("does not fit")
            .to_string()
    };
    let groups = UNet2DConditionConfig { norm_num_groups: 3, ..small_conditioned() };
    assert!(wrong(&groups).contains("3 groups do not divide the widths [8, 16]"));
    let heads = UNet2DConditionConfig { num_heads: vec![2, 3], norm_num_groups: 2, ..small_conditioned() };
    assert!(wrong(&heads).contains("3 heads do not divide a width of 16"));
}
