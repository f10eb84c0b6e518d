//! Sizes, names and gradients of the models.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_models::{
    Clip, ClipTextConfig, ClipTextEncoder, Cvae, CvaeConfig, Gpt2, Gpt2Config, ImageTowerConfig, Mlp,
    MlpConfig, MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig, ResNetVariant, TextToImage,
    VisionTransformer, VisionTransformerConfig, clip::openai_names,
};
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::{
    Block, BuildOptions, Context, Key, ParamBucket, ParamStore, Recompute, Result, Scope, Session,
    StoreBuilder, Tape, Value, ops,
};

use crate::harness::{self, evaluation_tape};

fn build<M>(dtype: DType, make: impl FnOnce(&Scope) -> Result<M>) -> (M, ParamStore) {
    harness::build(BuildOptions { dtype, key: Key::new(3), ..Default::default() }, make)
}

fn random(name: &str, dims: &[usize], dtype: DType) -> Tensor {
    harness::random(Key::new(5).stream(name), dims, dtype)
}

fn session(recompute: Recompute) -> Session {
    Session { recompute, ..Session::training(Arc::new(Context::new(1)), Key::new(2)) }
}

#[test]
fn parameter_counts_are_those_of_the_references() {
    use ResNetVariant::{R18, R34, R50, R101};
    for (variant, classes, cifar_stem, expected) in [
        (R18, 1000, false, 11_689_512),
        (R34, 1000, false, 21_797_672),
        (R50, 1000, false, 25_557_032),
        (R101, 1000, false, 44_549_160),
        (R18, 10, true, 11_173_962),
        (R34, 10, true, 21_282_122),
        (R50, 10, true, 23_520_842),
    ] {
        let config = ResNetConfig { cifar_stem, ..ResNetConfig::new(variant, classes) };
        let builder = StoreBuilder::new(BuildOptions { fill: false, ..Default::default() });
        ResNet::new(&builder.root(), &config).expect("sound");
        assert_eq!(builder.build().expect("no memory needed").num_parameters(), expected, "{config:?}");
    }
    for (classes, expected) in [(1000, 3_504_872), (10, 2_236_682)] {
        let builder = StoreBuilder::new(BuildOptions { fill: false, ..Default::default() });
        MobileNetV2::new(&builder.root(), &MobileNetV2Config::new(classes)).expect("sound");
        assert_eq!(builder.build().expect("no memory needed").num_parameters(), expected);
    }
    for (config, expected) in
        [(ClipTextConfig::vit_b(), 63_165_952 + 262_144), (ClipTextConfig::vit_l(), 123_060_480 + 589_824)]
    {
        let builder = StoreBuilder::new(BuildOptions { fill: false, ..Default::default() });
        ClipTextEncoder::new(&builder.root(), &config).expect("sound");
        assert_eq!(builder.build().expect("no memory needed").num_parameters(), expected);
    }
    for (name, expected) in [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ] {
        let builder = StoreBuilder::new(BuildOptions { fill: false, ..Default::default() });
        Gpt2::new(&builder.root(), &Gpt2Config::named(name).expect("published")).expect("sound");
        assert_eq!(builder.build().expect("no memory needed").num_parameters(), expected, "{name}");
    }
}

#[test]
fn names_are_those_of_the_references() {
    let config = MobileNetV2Config::new(10);
    let (_, store) = build(DType::F32, |scope| MobileNetV2::new(scope, &config));
    for name in [
        "features.0.0.weight",
        "features.0.1.running_mean",
        "features.1.conv.0.0.weight",
        "features.1.conv.1.weight",
        "features.1.conv.2.bias",
        "features.2.conv.1.0.weight",
        "features.2.conv.3.weight",
        "features.17.conv.2.weight",
        "features.18.1.num_batches_tracked",
        "classifier.1.weight",
    ] {
        assert!(store.param(name).is_ok() || store.buffer(name).is_ok(), "{name}");
    }
}

/// Compares the gradients of a few elements of every parameter with central differences, in f64.
fn check_parameters(store: &ParamStore, loss: impl Fn(&Tape) -> Result<Value>) {
    let evaluate = || -> f64 {
        let mut session = session(Recompute::Never);
        session.training = true;
        let tape = Tape::forward_only(session);
        loss(&tape).and_then(|v| v.tensor()).expect("sound").to_scalar::<f64>().expect("f64")
    };
    let tape = Tape::recording(session(Recompute::Never));
    let value = loss(&tape).expect("sound");
    store.zero_grads();
    tape.backward(&value).expect("sound");
    for param in store.params() {
        let Some(grad) = param.grad().expect("built") else { panic!("{} got no gradient", param.name()) };
        let grad = grad.flatten_all().and_then(|g| g.to_vec1::<f64>()).expect("f64");
        let scale = grad.iter().fold(1e-4_f64, |m, g| m.max(g.abs()));
        let original = param.tensor().and_then(|t| Ok(t.copy()?)).expect("resident");
        let values = original.flatten_all().and_then(|t| t.to_vec1::<f64>()).expect("f64");
        for at in [0, values.len() / 2, values.len() - 1] {
            let moved = |by: f64| {
                let mut values = values.clone();
                values[at] += by;
                let tensor =
                    Tensor::from_vec(values, param.shape().clone(), &Device::Cpu).expect("same size");
                param.set(&tensor).expect("same shape");
                evaluate()
            };
            // A small step, so that few activations cross their kink.
            let numeric = (moved(1e-7) - moved(-1e-7)) / 2e-7;
            param.set(&original).expect("same shape");
            let off = (numeric - grad[at]).abs() / scale;
            assert!(off < 2e-4, "{}[{at}]: {numeric} and {}", param.name(), grad[at]);
        }
    }
}

#[test]
fn resnet_gradients() {
    for variant in [ResNetVariant::R18, ResNetVariant::R50] {
        let config = ResNetConfig { width: 2, cifar_stem: true, ..ResNetConfig::new(variant, 3) };
        let (model, store) = build(DType::F64, |scope| ResNet::new(scope, &config));
        let images = random("images", &[3, 3, 9, 10], DType::F64);
        check_parameters(&store, |tape| {
            let logits = model.forward(tape, &Value::constant(images.clone()))?;
            loss::cross_entropy(tape, &logits, &[0, 2, 1], 0.1, LossDivisor::Batch)
        });
    }
}

fn small_text() -> ClipTextConfig {
    ClipTextConfig { context: 8, vocab: 12, width: 8, heads: 2, layers: 2, embed: 6, causal: true }
}

fn ids() -> Tensor {
    Tensor::new(&[[10_u32, 1, 2, 11, 0, 0], [10, 4, 3, 5, 6, 11], [10, 7, 11, 0, 0, 0]], &Device::Cpu)
        .expect("ids")
}

#[test]
fn vision_transformer_gradients() {
    let config = VisionTransformerConfig {
        image_size: 8,
        patch_size: 4,
        width: 8,
        layers: 2,
        heads: 2,
        inner: 12,
        ..VisionTransformerConfig::base(3)
    };
    let (model, store) = build(DType::F64, |scope| VisionTransformer::new(scope, &config));
    // The head and the class token begin with zeros, with which nothing before them has a gradient.
    for param in store
        .params()
        .iter()
        .filter(|param| param.name().starts_with("heads") || param.name() == "class_token")
    {
        param.set(&random(param.name(), param.dims(), DType::F64)).expect("same shape");
    }
    let images = random("images", &[3, 3, 8, 8], DType::F64);
    check_parameters(&store, |tape| {
        let logits = model.forward(tape, &Value::constant(images.clone()))?;
        loss::cross_entropy(tape, &logits, &[0, 2, 1], 0.1, LossDivisor::Batch)
    });

    let tape = evaluation_tape();
    let exact = |value: &Value| -> Vec<f64> {
        let flat = value.tensor().and_then(|values| Ok(values.flatten_all()?.to_vec1()?));
        flat.expect("f64")
    };
    let images = Value::constant(images);
    let (features, logits) = model.features_and_logits(&tape, &images).expect("sound");
    assert_eq!((features.dims(), logits.dims()), (&[3, 8][..], &[3, 3][..]));
    assert_eq!(exact(&logits), exact(&model.forward(&tape, &images).expect("sound")));
    let others = Value::constant(random("others", &[3, 3, 8, 12], DType::F64));
    let error = model.forward(&tape, &others).expect_err("another size").to_string();
    assert!(error.contains("[3, 3, 8, 12] in place of [N, 3, 8, 8]"), "{error}");
}

#[test]
fn vision_transformers_refuse_sizes_that_make_no_model() {
    let base = VisionTransformerConfig::base(3);
    for (config, words) in [
        (
            VisionTransformerConfig { patch_size: 15, ..base.clone() },
            "patches of 15 pixels do not divide images of 224",
        ),
        (VisionTransformerConfig { heads: 7, ..base.clone() }, "7 heads do not divide a width of 768"),
        (VisionTransformerConfig { layers: 0, ..base.clone() }, "`layers` is 0"),
        (VisionTransformerConfig { patch_size: 0, ..base.clone() }, "`patch_size` is 0"),
    ] {
        let builder = StoreBuilder::new(BuildOptions { fill: false, ..Default::default() });
        let error = VisionTransformer::new(&builder.root(), &config).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let builder = StoreBuilder::new(BuildOptions { fill: false, ..Default::default() });
    VisionTransformer::new(&builder.root(), &VisionTransformerConfig::base(1000)).expect("sound");
    assert_eq!(
        builder.build().expect("no memory needed").num_parameters(),
        86_567_656,
        "torchvision's vit_b_16"
    );
}

#[test]
fn clip_gradients() {
    let image = ImageTowerConfig { widths: vec![4, 6] };
    let (model, store) = build(DType::F64, |scope| Clip::new(scope, &small_text(), &image));
    let images = random("images", &[3, 3, 8, 8], DType::F64);
    check_parameters(&store, |tape| {
        model.forward(tape, &Value::constant(images.clone()), &ids())?.loss(tape, LossDivisor::Batch)
    });
}

#[test]
fn every_word_of_a_caption_is_read_in_its_image() {
    let image = ImageTowerConfig { widths: vec![4, 6] };
    let (model, store) = build(DType::F64, |scope| Clip::with_words(scope, &small_text(), &image));
    let images = random("images", &[3, 3, 8, 8], DType::F64);
    let forward = |tape: &Tape| model.forward(tape, &Value::constant(images.clone()), &ids());
    check_parameters(&store, |tape| {
        let out = forward(tape)?;
        let words = out.words_loss(tape, &ids(), LossDivisor::Batch)?.expect("it reads words");
        ops::add(tape, &out.loss(tape, LossDivisor::Batch)?, &words)
    });

    let exact = |value: &Value| -> Vec<f64> {
        let flat = value.tensor().and_then(|values| Ok(values.flatten_all()?.to_vec1()?));
        flat.expect("f64")
    };
    let tape = evaluation_tape();
    let out = forward(&tape).expect("sound");
    let logits = exact(out.words.as_ref().expect("it reads words"));
    let words: [&[usize]; 3] = [&[1, 2], &[4, 3, 5, 6], &[7]];
    let of = |(logits, words): (&[f64], &[usize])| {
        let total: f64 = logits.iter().map(|x| x.exp()).sum();
        let each = words.iter().map(|word| total.ln() - logits[*word]);
        each.sum::<f64>() / words.len() as f64
    };
    let expected = logits.chunks_exact(12).zip(words).map(of).sum::<f64>() / 3.0;
    let found = out.words_loss(&tape, &ids(), LossDivisor::Batch).expect("sound").expect("it reads words");
    assert!((exact(&found)[0] - expected).abs() < 1e-9, "{expected}");

    let beyond = Tensor::new(&[[10_u32, 1, 11], [10, 12, 13], [10, 3, 11]], &Device::Cpu).expect("ids");
    let error = out.words_loss(&tape, &beyond, LossDivisor::Batch).expect_err("there are 12").to_string();
    assert!(error.contains("token 12 is not in a vocabulary of 12"), "{error}");
    let empty = Tensor::new(&[[10_u32, 11, 0], [10, 11, 0], [10, 11, 0]], &Device::Cpu).expect("ids");
    let found = out.words_loss(&tape, &empty, LossDivisor::Batch).expect("sound").expect("it reads words");
    let expected = logits.chunks_exact(12).map(|logits| of((logits, &[11]))).sum::<f64>() / 3.0;
    assert!((exact(&found)[0] - expected).abs() < 1e-9, "{expected}");
}

fn small_cvae(image_size: usize) -> CvaeConfig {
    CvaeConfig { image_size, widths: vec![4, 6], latent: 5, text_dim: 6 }
}

#[test]
fn text_to_image_gradients() {
    let (model, store) =
        build(DType::F64, |scope| TextToImage::new(scope, &small_text(), &small_cvae(8), false));
    let images = random("images", &[3, 3, 8, 8], DType::F64).tanh().expect("sound");
    check_parameters(&store, |tape| {
        let images = Value::constant(images.clone());
        let out = model.forward(tape, &images, &ids())?;
        Ok(out.loss(tape, &images, (0.3, 0.2), LossDivisor::Batch)?.total)
    });
}

#[test]
fn mlps_have_the_names_sizes_and_gradients_of_a_sequence() {
    let config = MlpConfig { inputs: 12, width: 5, depth: 2, num_classes: 3 };
    let (model, store) = build(DType::F64, |scope| Mlp::new(scope, &config));
    let names: Vec<&str> = store.params().iter().map(phalanx_tensor::Param::name).collect();
    assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]);
    let blocks: Vec<&str> = store.buckets().iter().flat_map(ParamBucket::blocks).collect();
    assert_eq!(blocks, ["0", "2", "4"], "each layer is a block");
    assert_eq!(store.num_parameters(), config.num_parameters());
    assert_eq!(config.num_parameters(), 12 * 5 + 5 + 5 * 5 + 5 + 5 * 3 + 3);
    let images = random("images", &[4, 3, 2, 2], DType::F64);
    check_parameters(&store, |tape| {
        let logits = model.forward(tape, &Value::constant(images.clone()))?;
        loss::cross_entropy(tape, &logits, &[0, 1, 2, 0], 0.0, LossDivisor::Batch)
    });
    let tape = Tape::forward_only(session(Recompute::Never));
    let wide = Value::constant(random("wide", &[1, 3, 2, 3], DType::F64));
    let said = model.forward(&tape, &wide).expect_err("does not fit").to_string();
    assert!(said.contains("18 numbers each; the model takes 12"), "{said}");
    let flat = MlpConfig { depth: 0, ..config };
    let builder = StoreBuilder::new(BuildOptions::default());
    let said = Mlp::new(&builder.root(), &flat).expect_err("no layer").to_string();
    assert!(said.contains("at least one hidden layer"), "{said}");
}

/// Runs blocks in order, each on the output of the one before.
fn in_a_row(tape: &Tape, blocks: &[Arc<dyn Block>], input: &Value, more: &[Value]) -> Vec<Value> {
    blocks.iter().fold(vec![input.clone()], |values, block| {
        let inputs: Vec<Value> = [&values[..1], more].concat();
        tape.run(block, &inputs).expect("runs")
    })
}

#[test]
fn blocks_in_a_row_are_the_model() {
    let tape = evaluation_tape;
    let numbers = |value: &Value| {
        let flat = value.tensor().and_then(|tensor| Ok(tensor.flatten_all()?.to_vec1::<f64>()?));
        flat.expect("f64")
    };
    let names = |blocks: &[Arc<dyn Block>], store: &ParamStore| {
        // Every parameter belongs to a block.
        let names: Vec<String> = blocks.iter().map(|block| block.name().to_owned()).collect();
        let of_params: Vec<&str> = store.buckets().iter().flat_map(ParamBucket::blocks).collect();
        assert!(
            of_params.iter().all(|name| names.iter().any(|known| known == name)),
            "{of_params:?} {names:?}"
        );
        names.len()
    };
    let images = Value::constant(random("images", &[2, 3, 16, 16], DType::F64));

    let config = ResNetConfig { width: 4, cifar_stem: true, ..ResNetConfig::new(ResNetVariant::R101, 3) };
    let (model, store) = build(DType::F64, |scope| ResNet::new(scope, &config));
    assert_eq!(names(model.blocks(), &store), 1 + 3 + 4 + 23 + 3 + 1);
    let row = in_a_row(&tape(), model.blocks(), &images, &[]);
    assert_eq!(numbers(&row[0]), numbers(&model.forward(&tape(), &images).expect("fits")));

    let config = MobileNetV2Config { width_multiplier: 0.25, cifar_stem: true, ..MobileNetV2Config::new(3) };
    let (model, store) = build(DType::F64, |scope| MobileNetV2::new(scope, &config));
    assert_eq!(names(model.blocks(), &store), 1 + 17 + 1 + 1);
    let row = in_a_row(&tape(), model.blocks(), &images, &[]);
    assert_eq!(numbers(&row[0]), numbers(&model.forward(&tape(), &images).expect("fits")));

    let config = MlpConfig { inputs: 3 * 16 * 16, width: 5, depth: 2, num_classes: 3 };
    let (model, store) = build(DType::F64, |scope| Mlp::new(scope, &config));
    assert_eq!(names(model.blocks(), &store), 3);
    let flat = images.tensor().and_then(|images| Ok(images.flatten_from(1)?)).expect("flat");
    let row = in_a_row(&tape(), model.blocks(), &Value::constant(flat), &[]);
    assert_eq!(numbers(&row[0]), numbers(&model.forward(&tape(), &images).expect("fits")));

    let (model, store) = build(DType::F64, |scope| Cvae::new(scope, &small_cvae(16)));
    assert_eq!(
        names(&[model.encoder_blocks(), model.decoder_blocks()].concat(), &store),
        (2 + 1) + (1 + 2 + 1)
    );
    let text = Value::constant(random("text", &[2, 6], DType::F64));
    let row = in_a_row(&tape(), model.encoder_blocks(), &images, std::slice::from_ref(&text));
    let (mu, logvar) = model.encode(&tape(), &images, &text).expect("fits");
    assert_eq!((numbers(&row[0]), numbers(&row[1])), (numbers(&mu), numbers(&logvar)));
    let row = in_a_row(&tape(), model.decoder_blocks(), &mu, std::slice::from_ref(&text));
    assert_eq!(numbers(&row[0]), numbers(&model.decode(&tape(), &mu, &text).expect("fits")));

    let (model, store) = build(DType::F64, |scope| ClipTextEncoder::new(scope, &small_text()));
    assert_eq!(names(model.blocks(), &store), 1 + 2 + 1);
    let (head, sequence) = model.blocks().split_last().expect("blocks");
    let tokens = in_a_row(&tape(), sequence, &Value::constant(ids()), &[]);
    let ends = Value::constant(Tensor::new(&[3_u32, 5, 2], &Device::Cpu).expect("ends"));
    let out = tape().run(head, &[tokens[0].clone(), ends]).expect("fits");
    let features = model.forward(&tape(), &ids()).expect("fits");
    assert_eq!(numbers(&out[0]), numbers(&features.pooled));
    assert_eq!(numbers(&out[1]), numbers(&features.tokens));
}

#[test]
fn recomputing_blocks_changes_no_bit() {
    let run = |recompute| {
        let (model, store) =
            build(DType::F32, |scope| TextToImage::new(scope, &small_text(), &small_cvae(8), false));
        let tape = Tape::recording(session(recompute));
        let images = Value::constant(random("images", &[3, 3, 8, 8], DType::F32));
        let out = model.forward(&tape, &images, &ids()).expect("sound");
        let loss = out.loss(&tape, &images, (0.3, 0.2), LossDivisor::Batch).expect("sound").total;
        tape.backward(&loss).expect("sound");
        let grads = store.buckets().iter().map(|param| {
            param
                .grads()
                .expect("sound")
                .expect("all used")
                .tensor()
                .expect("on the CPU")
                .to_vec1::<f32>()
                .expect("f32")
        });
        (loss.tensor().expect("sound").to_scalar::<f32>().expect("f32"), grads.collect::<Vec<_>>())
    };
    let expected = run(Recompute::Never);
    assert_eq!(run(Recompute::Every(1)), expected);
    assert_eq!(run(Recompute::Every(2)), expected);
}

#[test]
fn a_text_is_read_at_its_end_token() {
    let (model, _store) = build(DType::F32, |scope| ClipTextEncoder::new(scope, &small_text()));
    let features = |ids: &Tensor| {
        let tape = Tape::forward_only(session(Recompute::Never));
        model
            .forward(&tape, ids)
            .and_then(|f| f.pooled.tensor())
            .expect("sound")
            .to_vec2::<f32>()
            .expect("f32")
    };
    let all = features(&ids());
    let alone = Tensor::new(&[[10_u32, 7, 11]], &Device::Cpu).expect("ids");
    for (alone, among) in features(&alone)[0].iter().zip(&all[2]) {
        assert!((alone - among).abs() < 1e-5, "{alone} and {among}");
    }
    let long = Tensor::zeros((1, 9), DType::U32, &Device::Cpu).expect("ids");
    let tape = Tape::forward_only(session(Recompute::Never));
    assert!(model.forward(&tape, &long).expect_err("too long").to_string().contains("the context is 8"));
}

#[test]
fn tokens_of_an_encoder_that_is_not_causal_know_what_follows() {
    for causal in [true, false] {
        let config = ClipTextConfig { causal, ..small_text() };
        let (model, _store) = build(DType::F32, |scope| ClipTextEncoder::new(scope, &config));
        let tokens = |ids: &[[u32; 6]]| -> Vec<Vec<Vec<f32>>> {
            let tape = Tape::forward_only(session(Recompute::Never));
            let ids = Tensor::from_vec(ids.concat(), (ids.len(), 6), &Device::Cpu).expect("ids");
            let tokens = model.forward(&tape, &ids).and_then(|features| features.tokens.tensor());
            tokens.expect("sound").to_vec3::<f32>().expect("f32")
        };
        let both = tokens(&[[10, 1, 2, 11, 0, 0], [10, 1, 3, 11, 0, 0]]);
        assert_eq!(both[0][1] == both[1][1], causal, "the token before one that differs");
        let alone = tokens(&[[10, 1, 2, 11, 0, 0]]);
        let among = tokens(&[[10, 1, 2, 11, 0, 0], [10, 4, 3, 5, 6, 11]]);
        for (alone, among) in alone[0][3].iter().zip(&among[0][3]) {
            assert!((alone - among).abs() < 1e-5, "other texts of a batch do not matter: {alone} {among}");
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let refuse = |text: ClipTextConfig, cvae: CvaeConfig| {
        let builder = StoreBuilder::new(BuildOptions::default());
        TextToImage::new(&builder.root(), &text, &cvae, false).expect_err("does not fit").to_string()
    };
    assert!(refuse(small_text(), small_cvae(10)).contains("multiple of 4"));
    let wide = CvaeConfig { text_dim: 7, ..small_cvae(8) };
    assert!(refuse(small_text(), wide).contains("6 elements"));
    let heads = ClipTextConfig { heads: 3, ..small_text() };
    assert!(refuse(heads, small_cvae(8)).contains("3 heads"));
}

#[test]
fn hugging_face_names_lead_to_openai_weights() {
    let (_, store) = build(DType::F32, |scope| ClipTextEncoder::new(scope, &small_text()));
    let openai = store.state_dict().expect("resident");
    let mut hugging = Vec::new();
    for (name, tensor) in &openai {
        let layered = name.strip_prefix("transformer.resblocks.").and_then(|rest| rest.split_once('.'));
        let push = |hugging: &mut Vec<_>, name: String, tensor: Tensor| hugging.push((name, tensor));
        match (name.as_str(), layered) {
            ("token_embedding.weight", _) => {
                push(&mut hugging, "text_model.embeddings.token_embedding.weight".into(), tensor.clone());
            }
            ("positional_embedding", _) => {
                push(&mut hugging, "text_model.embeddings.position_embedding.weight".into(), tensor.clone());
            }
            ("text_projection", _) => {
                push(&mut hugging, "text_projection.weight".into(), tensor.t().expect("a matrix"));
            }
            (_, Some((layer, rest))) => {
                let at = format!("text_model.encoder.layers.{layer}");
                if let Some(kind) = rest.strip_prefix("attn.in_proj_") {
                    for (part, tensor) in ["q", "k", "v"].iter().zip(tensor.chunk(3, 0).expect("thirds")) {
                        push(&mut hugging, format!("{at}.self_attn.{part}_proj.{kind}"), tensor);
                    }
                } else {
                    let rest =
                        rest.replace("attn.out_proj", "self_attn.out_proj").replace("ln_", "layer_norm");
                    let rest = rest.replace("mlp.c_fc", "mlp.fc1").replace("mlp.c_proj", "mlp.fc2");
                    push(&mut hugging, format!("{at}.{rest}"), tensor.clone());
                }
            }
            (other, None) => {
                push(&mut hugging, other.replace("ln_final", "text_model.final_layer_norm"), tensor.clone());
            }
        }
    }
    hugging.push(("vision_model.pre_layrnorm.weight".into(), random("x", &[3], DType::F32)));
    let renamed = openai_names(hugging).expect("complete");
    let report = store.load_state_dict(renamed.iter().map(|(n, t)| (n.as_str(), t))).expect("shapes fit");
    assert_eq!(report, phalanx_tensor::LoadReport::default());
    for (name, before) in openai {
        let after = store.param(&name).and_then(phalanx_tensor::Param::tensor).expect("a parameter");
        let off = (before - after).and_then(|d| d.abs()?.sum_all()?.to_scalar::<f32>()).expect("same shape");
        assert_eq!(off, 0.0, "{name}");
    }
}
