//! Models whose layers are cut over ranks, against one rank with whole layers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor};
use phalanx_models::diffusion::{UNet2DConditionConfig, UNet2DConditionModel, tensor_plan};
use phalanx_models::{
    BertConfig, BertMasked, ClipTextConfig, ClipTextEncoder, Decoder, DecoderConfig, EncoderInput,
    ExpertsConfig, FeedForwardActivation, Gpt2, Gpt2Config, LanguageModel, Mlp, MlpConfig, SourceTexts,
    TokenInput, TranslationConfig, TranslationLayout, TranslationTokens, Translator,
};
use phalanx_sharding::{RankGroup, single_rank_group};
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_tensor::{
    Array, BuildOptions, Context, HookResult, Key, PlacedName, ProcessGroup, Recompute, Result, Scope,
    Session, StoreBuilder, Tape, TensorGroup, TensorPlan, TensorRank, Value, ops,
};

use crate::common::on_ranks;
use crate::cut_case::{Case, Loss, case, ids};
use crate::cut_image_models;

/// The cross-entropy of the next tokens by a language model.
fn next_tokens(model: Arc<dyn LanguageModel>) -> Loss {
    next_tokens_of(model, [2, 6])
}

/// The cross-entropy of the next tokens of texts, their number and length, and the balance of experts.
fn next_tokens_of(model: Arc<dyn LanguageModel>, [texts, length]: [usize; 2]) -> Loss {
    Box::new(move |tape| {
        let tokens = ids(texts, length, model.vocab() as u32);
        let states = model.routed(tape, &TokenInput::new(&tokens)?, &vec![1.0; texts * length])?;
        let labels: Vec<u32> = tokens.flatten_all()?.to_vec1::<u32>()?.into_iter().rev().collect();
        let targets = RowTargets { labels: (&labels).into(), weights: None, over: LossDivisor::Batch };
        let loss = model.loss(tape, &states.hidden, &targets, CrossEntropyOptions::default())?;
        match states.balance {
            Some(balance) => ops::add(tape, &loss, &ops::scale(tape, &balance, 0.3 / labels.len() as f64)?),
            None => Ok(loss),
        }
    })
}

fn gpt2() -> Gpt2Config {
    let sizes = Gpt2Config {
        vocab: 13,
        context: 8,
        width: 24,
        layers: 2,
        heads: 6,
        inner: 10,
        ..Gpt2Config::default()
    };
    sizes.with_dropout(0.0)
}

fn decoder() -> DecoderConfig {
    DecoderConfig {
        vocab: 13,
        context: 8,
        width: 12,
        layers: 2,
        heads: 6,
        key_heads: 3,
        head_dim: 4,
        inner: 10,
        ..DecoderConfig::default()
    }
}

fn qwen2() -> DecoderConfig {
    DecoderConfig { projection_bias: true, key_heads: 6, tied: false, ..decoder() }
}

fn qwen3() -> DecoderConfig {
    DecoderConfig { head_norms: true, ..decoder() }
}

/// Fewer heads of keys than four ranks, and than two.
fn few_keys() -> DecoderConfig {
    DecoderConfig { heads: 4, key_heads: 1, head_norms: true, ..decoder() }
}

fn mixtral() -> DecoderConfig {
    DecoderConfig { experts: Some(ExpertsConfig { count: 3, chosen: 2 }), ..decoder() }
}

fn bert() -> BertConfig {
    let sizes = BertConfig {
        vocab: 13,
        context: 8,
        width: 20,
        layers: 2,
        heads: 5,
        inner: 9,
        ..BertConfig::default()
    };
    sizes.with_dropout(0.0)
}

fn translation(layout: TranslationLayout) -> TranslationConfig {
    TranslationConfig {
        vocab: 13,
        context: 8,
        width: 16,
        encoder_layers: 1,
        decoder_layers: 1,
        encoder_heads: 4,
        decoder_heads: 4,
        encoder_inner: 10,
        decoder_inner: 11,
        activation: FeedForwardActivation::Silu,
        dropout: 0.0,
        layout,
        tokens: TranslationTokens { padding: 12, start: 12, end: 0 },
        ..TranslationConfig::default()
    }
}

fn mlp() -> MlpConfig {
    MlpConfig { inputs: 12, width: 10, depth: 2, num_classes: 3 }
}

fn text_config() -> ClipTextConfig {
    ClipTextConfig { context: 8, vocab: 514, width: 16, heads: 4, layers: 1, embed: 8, causal: true }
}

fn unet() -> UNet2DConditionConfig {
    UNet2DConditionConfig {
        block_out_channels: vec![16, 32],
        attention: vec![false, true],
        dropout: 0.2,
        ..UNet2DConditionConfig::small(3, 16)
    }
}

fn unet_plan() -> Result<TensorPlan> {
    Ok(text_config().tensor_plan()?.and(tensor_plan()?))
}

fn translator(scope: &Scope, layout: TranslationLayout) -> Result<Loss> {
    let model = Translator::new(scope, &translation(layout))?;
    Ok(Box::new(move |tape| {
        let lengths = Tensor::new(&[5_u32, 3], &Device::Cpu)?;
        let source =
            SourceTexts { tokens: Value::constant(ids(2, 5, 13)), lengths: Value::constant(&lengths) };
        let states = model.encode(tape, &source)?;
        let states = model.decode(tape, &states, &source.lengths, &Value::constant(ids(2, 4, 13)))?;
        let labels: Vec<u32> = ids(8, 1, 13).flatten_all()?.to_vec1()?;
        let targets = RowTargets { labels: (&labels).into(), weights: None, over: LossDivisor::Batch };
        model.loss(tape, &states, &targets, CrossEntropyOptions::default())
    }))
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("gpt2", gpt2().tensor_plan(), &[1, 2, 3, 4], |scope| {
            Ok(next_tokens(Arc::new(Gpt2::new(scope, &gpt2())?)))
        }),
        case("gpt2 with dropout", gpt2().tensor_plan(), &[1, 2, 3, 4], |scope| {
            Ok(next_tokens(Arc::new(Gpt2::new(scope, &gpt2().with_dropout(0.2))?)))
        }),
        case("llama", decoder().tensor_plan(), &[1, 2, 3], |scope| {
            Ok(next_tokens(Arc::new(Decoder::new(scope, &decoder())?)))
        }),
        case("qwen2", qwen2().tensor_plan(), &[1, 2, 3, 4], |scope| {
            Ok(next_tokens(Arc::new(Decoder::new(scope, &qwen2())?)))
        }),
        case("qwen3", qwen3().tensor_plan(), &[1, 2, 3], |scope| {
            Ok(next_tokens(Arc::new(Decoder::new(scope, &qwen3())?)))
        }),
        case("few keys", few_keys().tensor_plan(), &[1, 2, 4], |scope| {
            Ok(next_tokens(Arc::new(Decoder::new(scope, &few_keys())?)))
        }),
        case("mixtral", mixtral().tensor_plan(), &[1, 2, 3], |scope| {
            Ok(next_tokens(Arc::new(Decoder::new(scope, &mixtral())?)))
        }),
        case("bert", bert().tensor_plan(), &[1, 2, 3, 4], |scope| {
            let model = BertMasked::new(scope, &bert())?;
            Ok(Box::new(move |tape| {
                let [tokens, types] = [ids(2, 6, 13), ids(2, 6, 2)].map(Value::constant);
                let lengths = Value::constant(Tensor::new(&[6_u32, 4], &Device::Cpu)?);
                let input = EncoderInput { tokens, types, lengths };
                let states = model.states_at(tape, &input, &[1, 4, 8])?;
                let targets =
                    RowTargets { labels: (&[2, 5, 7]).into(), weights: None, over: LossDivisor::Batch };
                model.loss(tape, &states, &targets, CrossEntropyOptions::default())
            }))
        }),
        case("marian", translation(TranslationLayout::Marian).tensor_plan(), &[1, 2, 3, 4], |scope| {
            translator(scope, TranslationLayout::Marian)
        }),
        case("transformer", translation(TranslationLayout::Torch).tensor_plan(), &[1, 2, 3], |scope| {
            translator(scope, TranslationLayout::Torch)
        }),
        case("u-net", unet_plan(), &[1, 2, 4], |scope| {
            let text = ClipTextEncoder::new(&scope.pp("text"), &text_config())?;
            let model = UNet2DConditionModel::new(&scope.pp("unet"), &unet())?;
            Ok(Box::new(move |tape| {
                let tokens = ids(2, 8, 514);
                let seen = text.forward(tape, &tokens)?;
                let mut numbers = vec![0.0; 2 * 3 * 8 * 8];
                Key::new(6).normal(0, &mut numbers);
                let images = Value::constant(Tensor::from_vec(numbers, (2, 3, 8, 8), &Device::Cpu)?);
                let noise = model.forward(tape, &images, &[3.0, 70.0], &seen.tokens)?;
                ops::mean(tape, &ops::mul(tape, &noise, &noise)?)
            }))
        }),
        case("mlp", mlp().tensor_plan(), &[1, 2, 3, 4], |scope| {
            let model = Mlp::new(scope, &mlp())?;
            Ok(Box::new(move |tape| {
                let mut numbers = vec![0.0; 24];
                Key::new(5).normal(0, &mut numbers);
                let images = Tensor::from_vec(numbers, (2, 12), &Device::Cpu)?;
                let logits = model.forward(tape, &Value::constant(images))?;
                phalanx_tensor::loss::cross_entropy(tape, &logits, &[2, 0], 0.0, LossDivisor::Batch)
            }))
        }),
    ];
    cases.extend(cut_image_models::cases());
    cases
}

/// The loss of a step, and each parameter or its portion with the gradient.
struct Step {
    loss: f64,
    params: Vec<Trained>,
    /// Buffers after the step, by name.
    buffers: Vec<(String, Tensor)>,
}

struct Trained {
    name: String,
    value: Tensor,
    gradient: Tensor,
}

/// The cases whose sequences ranks can share between layers.
const SEQUENCES: &[&str] = &[
    "gpt2",
    "gpt2 with dropout",
    "llama",
    "qwen2",
    "qwen3",
    "few keys",
    "mixtral",
    "bert",
    "marian",
    "transformer",
    "vit",
];

/// Computes a step with whole layers, or with the portions of a rank.
fn step(case: &Case, cut: Option<(TensorRank, TensorGroup)>, recompute: Recompute) -> Result<Step> {
    let layout = cut.as_ref().map(|(rank, _)| case.plan.layout(*rank));
    let splits = cut.as_ref().is_some_and(|(_, group)| group.splits_sequences);
    let key = Key::new(7);
    let builder =
        StoreBuilder::new(BuildOptions { key, dtype: DType::F64, layout, ..BuildOptions::default() });
    let loss = (case.build)(&builder.root())?;
    let store = builder.build()?;
    if cut.is_some() {
        let names: Vec<&str> = store.params().iter().map(phalanx_tensor::Param::name).collect();
        // A tied head is no parameter of its own.
        let unmatched = case.plan.unmatched(&names);
        assert!(unmatched.iter().all(|layer| layer.to_string() == "lm_head"), "{}: {unmatched:?}", case.name);
    }
    let session = Session::training(Arc::new(Context::new(1)), Key::new(1));
    let tape = Tape::recording(Session { tensor_group: cut.map(|(_, group)| group), recompute, ..session });
    let value = loss(&tape)?;
    let number = value.tensor()?.to_dtype(DType::F64)?.to_scalar()?;
    tape.backward(&value)?;
    assert_eq!(tape.has_split_sequences(), splits, "{}", case.name);
    let trained = |param: &phalanx_tensor::Param| {
        let gradient = param.grad()?.map(|grad| grad.copy()).transpose()?.expect("is trained");
        Ok(Trained { name: param.name().to_owned(), value: param.to_host()?.copy()?, gradient })
    };
    let buffers = store
        .buffers()
        .iter()
        .map(|buffer| Ok((buffer.name().to_owned(), buffer.to_host()?.to_dtype(DType::F64)?)));
    let buffers = buffers.collect::<Result<_>>()?;
    Ok(Step { loss: number, params: store.params().iter().map(trained).collect::<Result<_>>()?, buffers })
}

/// The largest difference of a rank's gradients from the portions of whole ones, relative to the largest element.
fn difference(case: &Case, whole: &Step, own: &Step, rank: TensorRank) -> f64 {
    let layout = case.plan.layout(rank);
    let mut most = (own.loss - whole.loss).abs();
    let numbers = |tensor: &Tensor| tensor.flatten_all().and_then(|flat| flat.to_vec1::<f64>()).expect("f64");
    let cut = |name: &str, all: &Tensor| match &layout
        .place(&PlacedName::param(name), all.shape())
        .expect("fits")
        .portion
    {
        Some(portion) => portion.cut(all).expect("the whole"),
        None => all.clone(),
    };
    for ((name, whole), (_, own)) in whole.buffers.iter().zip(&own.buffers) {
        let (found, expected) = (numbers(own), numbers(&cut(name, whole)));
        assert_eq!(found.len(), expected.len(), "{name}");
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-10 * b.abs().max(1e-3);
        if !found.iter().zip(&expected).all(near) {
            return f64::INFINITY;
        }
    }
    for (whole, own) in whole.params.iter().zip(&own.params) {
        let name = &whole.name;
        assert_eq!(numbers(&own.value), numbers(&cut(name, &whole.value)), "initial values of {name}");
        let (found, expected) = (numbers(&own.gradient), numbers(&cut(name, &whole.gradient)));
        assert_eq!(found.len(), expected.len(), "{name}");
        let largest = expected.iter().fold(1e-3, |most: f64, number| most.max(number.abs()));
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / largest);
        most = off.fold(most, f64::max);
    }
    most
}

/// Computes a step on ranks that share the layers. Returns for each rank the difference from whole layers.
fn on_parts(name: &'static str, ranks: usize, recompute: Recompute, splits_sequences: bool) -> Vec<f64> {
    on_ranks(ranks, move |comm| {
        let case = cases().into_iter().find(|case| case.name == name).expect("a case");
        let whole = step(&case, None, Recompute::Never).expect("sound");
        let rank = TensorRank { rank: comm.rank(), ranks };
        let group = TensorGroup { ranks: RankGroup::of(&comm), splits_sequences, overlaps: true };
        let own = step(&case, Some((rank, group)), recompute).expect("sound");
        difference(&case, &whole, &own, rank)
    })
}

#[test]
fn every_plan_gives_the_gradients_of_whole_layers() {
    for Case { name, ranks, .. } in cases() {
        for &ranks in ranks {
            let off = on_parts(name, ranks, Recompute::Never, false);
            assert!(off.iter().all(|off| *off < 1e-10), "{name} on {ranks} ranks: {off:?}");
        }
        let off = on_parts(name, 2, Recompute::Every(1), false);
        assert!(off.iter().all(|off| *off < 1e-10), "{name}, computed again: {off:?}");
    }
}

#[test]
fn ranks_that_share_sequences_give_the_gradients_of_whole_ones() {
    for Case { name, ranks, .. } in cases().into_iter().filter(|case| SEQUENCES.contains(&case.name)) {
        for &ranks in ranks {
            let off = on_parts(name, ranks, Recompute::Never, true);
            assert!(off.iter().all(|off| *off < 1e-10), "{name} on {ranks} ranks: {off:?}");
        }
        let off = on_parts(name, 2, Recompute::Every(1), true);
        assert!(off.iter().all(|off| *off < 1e-10), "{name}, computed again: {off:?}");
    }
}

/// A perceptron with enough rows and outputs for sums in blocks.
fn wide_perceptron() -> Case {
    const SIZES: MlpConfig = MlpConfig { inputs: 40, width: 64, depth: 3, num_classes: 300 };
    case("wide perceptron", SIZES.tensor_plan(), &[3], |scope| {
        let model = Mlp::new(scope, &SIZES)?;
        Ok(Box::new(move |tape| {
            let mut numbers = vec![0.0; 600 * SIZES.inputs];
            Key::new(5).normal(0, &mut numbers);
            let images = Tensor::from_vec(numbers, (600, SIZES.inputs), &Device::Cpu)?;
            let logits = model.forward(tape, &Value::constant(images))?;
            let labels: Vec<u32> = (0..600).map(|row| row % 300).collect();
            phalanx_tensor::loss::cross_entropy(tape, &logits, &labels, 0.0, LossDivisor::Batch)
        }))
    })
}

/// A language model with texts that are long enough for products in blocks.
fn long_texts<const TEXTS: usize, const LENGTH: usize>() -> Case {
    const SIZES: fn() -> Gpt2Config =
        || Gpt2Config { context: 700, width: 96, layers: 1, heads: 3, inner: 96, ..gpt2() };
    case("long texts", SIZES().tensor_plan(), &[3], |scope| {
        Ok(next_tokens_of(Arc::new(Gpt2::new(scope, &SIZES())?), [TEXTS, LENGTH]))
    })
}

#[test]
fn messages_during_products_change_no_bit() {
    let cases: [(fn() -> Case, bool); 4] = [
        (wide_perceptron, false),
        (long_texts::<1, 691>, false),
        (long_texts::<1, 691>, true),
        (long_texts::<3, 231>, true),
    ];
    for (case, splits_sequences) in cases {
        let off = on_ranks(3, move |comm| {
            let (case, rank) = (case(), TensorRank { rank: comm.rank(), ranks: 3 });
            let run = |overlaps| {
                let group = TensorGroup { ranks: RankGroup::of(&comm), splits_sequences, overlaps };
                step(&case, Some((rank, group)), Recompute::Never).expect("sound")
            };
            let (one, other) = (run(true), run(false));
            assert!(one.loss.to_bits() == other.loss.to_bits());
            for (one, other) in one.params.iter().zip(&other.params) {
                let bits = |tensor: &Tensor| -> Vec<u64> {
                    let numbers = tensor.flatten_all().and_then(|flat| flat.to_vec1::<f64>()).expect("f64");
                    numbers.into_iter().map(f64::to_bits).collect()
                };
                assert!(bits(&one.gradient) == bits(&other.gradient), "{}", one.name);
            }
            let whole = step(&case, None, Recompute::Never).expect("sound");
            difference(&case, &whole, &one, rank)
        });
        assert!(off.iter().all(|off| *off < 1e-10), "{splits_sequences}: {off:?}");
    }
}

#[test]
fn one_rank_checks_every_placement() {
    for case in cases() {
        let whole = step(&case, None, Recompute::Never).expect("sound");
        let cut = Some((TensorRank::ALONE, single_rank_group().into()));
        let own = step(&case, cut, Recompute::Never).expect("sound");
        // Biases of complete sums are added apart.
        let off = difference(&case, &whole, &own, TensorRank::ALONE);
        assert!(off < 1e-12, "{}: {off}", case.name);
        // Rules of one layer of a pair alone leave a shard that nothing brings together.
        let (name, build, ranks) = (case.name, case.build, case.ranks);
        let first = "*.c_fc = column";
        if name == "gpt2" {
            let plan = TensorPlan::new([first]).expect("a rule").with_inputs_first();
            let wrong = Case { name, plan, ranks, build };
            let cut = Some((TensorRank::ALONE, single_rank_group().into()));
            let error = step(&wrong, cut, Recompute::Never).err().expect("half a plan").to_string();
            let told = "block `transformer.h.0`: linear: `transformer.h.0.mlp.c_proj.weight` has all elements on this rank";
            assert!(error.starts_with(told) && error.contains("is a shard of dimension 2"), "{error}");
        }
    }
}

#[test]
fn groups_of_channels_are_not_cut_apart() {
    let told = on_ranks(3, |comm| {
        let case = cases().into_iter().find(|case| case.name == "u-net").expect("a case");
        let rank = TensorRank { rank: comm.rank(), ranks: 3 };
        step(&case, Some((rank, RankGroup::of(&comm).into())), Recompute::Never)
            .err()
            .expect("groups")
            .to_string()
    });
    let expected = "block `unet.down_blocks.0.resnets.0`: group_norm: this rank has channels [0..5] of 16, and groups of 2 stay together";
    assert_eq!(told[0], expected);
}

/// A group that leaves out one operation, counted from 0.
#[derive(Debug)]
struct Forgetful {
    group: Arc<dyn ProcessGroup>,
    left_out: usize,
    operations: AtomicUsize,
}

impl Forgetful {
    fn is_left_out(&self) -> bool {
        self.operations.fetch_add(1, Ordering::Relaxed) == self.left_out
    }

    fn unless_left_out(&self, run: impl FnOnce(&dyn ProcessGroup) -> HookResult) -> HookResult {
        if self.is_left_out() { Ok(()) } else { run(&*self.group) }
    }
}

impl ProcessGroup for Forgetful {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn all_reduce(&self, values: &Array) -> HookResult {
        self.unless_left_out(|group| group.all_reduce(values))
    }

    fn all_gather(&self, values: &Array, lens: &[usize]) -> HookResult {
        if !self.is_left_out() {
            return self.group.all_gather(values, lens);
        }
        // Memory that nothing was written to may hold the right numbers of a former run.
        let mut start = 0;
        for (rank, len) in lens.iter().enumerate() {
            if rank != self.rank() {
                values.view(start, *len)?.zero()?;
            }
            start += len;
        }
        Ok(())
    }

    fn reduce_scatter(&self, values: &Array, lens: &[usize]) -> HookResult {
        self.unless_left_out(|group| group.reduce_scatter(values, lens))
    }
}

#[test]
fn no_operation_of_a_plan_can_be_left_out() {
    let sequences =
        cases().into_iter().filter(|case| SEQUENCES.contains(&case.name)).map(|case| (case, true));
    for (case, splits_sequences) in cases().into_iter().map(|case| (case, false)).chain(sequences) {
        let name = case.name;
        let whole = Arc::new(step(&case, None, Recompute::Never).expect("sound"));
        let run = move |left_out: usize| {
            let whole = whole.clone();
            on_ranks(2, move |comm| {
                let case = cases().into_iter().find(|case| case.name == name).expect("a case");
                let rank = TensorRank { rank: comm.rank(), ranks: 2 };
                let group = RankGroup::of(&comm);
                let group = Arc::new(Forgetful { group, left_out, operations: AtomicUsize::new(0) });
                let shared = TensorGroup { ranks: group.clone(), splits_sequences, overlaps: true };
                let own = step(&case, Some((rank, shared)), Recompute::Never);
                // Ranks that choose other experts do not even have values of the same shape.
                let off = own.map_or(f64::INFINITY, |own| difference(&case, &whole, &own, rank));
                (off, group.operations.load(Ordering::Relaxed))
            })
        };
        let operations = run(usize::MAX)[0].1;
        assert!(operations >= 1, "{name}: {operations} operations");
        for left_out in 0..operations {
            let off = run(left_out);
            let is_told = off.iter().any(|(off, _)| *off > 1e-6 || off.is_nan());
            assert!(is_told, "{name} without operation {left_out} of {operations}: {off:?}");
        }
    }
}
