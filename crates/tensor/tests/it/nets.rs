//! Small networks and their training on any device.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::nn::{self, BatchNormConfig};
use phalanx_tensor::ops::{self, AttentionOptions, Conv2dOptions, FusedActivation, PoolOptions};
use phalanx_tensor::optim::{Adam, Ema, LossScale, Optimizer, Sgd, grad_sum_of_squares};
use phalanx_tensor::{
    Array, BuildOptions, ComputeDevice, Context, Init, Key, ParamStore, Precision, Recompute, Result, Scope,
    Session, StoreBuilder, Tape, TensorError, Value,
};

pub(crate) const STEPS: u64 = 5;

fn draw(name: &str, step: u64, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(3).stream(name).step(step).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).and_then(|t| t.to_dtype(DType::F32)).expect("a constant")
}

fn numbers(values: Vec<u32>, dims: &[usize]) -> Tensor {
    Tensor::from_vec(values, dims, &Device::Cpu).expect("as many")
}

/// A network with a loss, on any device.
pub(crate) trait Net {
    fn new(scope: &Scope) -> Result<Self>
    where
        Self: Sized;
    fn batch(step: u64) -> Vec<Tensor>
    where
        Self: Sized;
    fn loss(&self, tape: &Tape, batch: &[Array]) -> Result<Value>;
    fn optimizer() -> Box<dyn Optimizer>
    where
        Self: Sized;
}

/// Three linear layers that classify each row.
pub(crate) struct Mlp {
    layers: [nn::Linear; 3],
}

impl Net for Mlp {
    fn new(scope: &Scope) -> Result<Self> {
        let layer = |name: &str, from, to| nn::Linear::new(&scope.pp(name).block(), from, to);
        Ok(Self { layers: [layer("0", 7, 16)?, layer("1", 16, 9)?, layer("2", 9, 5)?] })
    }

    fn batch(step: u64) -> Vec<Tensor> {
        let labels = (0..8).map(|i| (3 * i + step as u32) % 5).collect();
        vec![draw("rows", step, &[8, 7]), numbers(labels, &[8])]
    }

    fn loss(&self, tape: &Tape, batch: &[Array]) -> Result<Value> {
        let x = ops::relu(tape, &self.layers[0].forward(tape, &Value::constant(&batch[0]))?)?;
        let x = ops::gelu(tape, &self.layers[1].forward(tape, &x)?)?;
        loss::cross_entropy(tape, &self.layers[2].forward(tape, &x)?, &batch[1], 0.0, LossDivisor::Batch)
    }

    fn optimizer() -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.9, false, 0.0))
    }
}

/// Two convolutions with batch norms, the second with a skip connection, and a classifier.
pub(crate) struct Images {
    convolutions: [nn::Conv2d; 2],
    norms: [nn::BatchNorm2d; 2],
    head: nn::Linear,
}

impl Net for Images {
    fn new(scope: &Scope) -> Result<Self> {
        let (stem, rest) = (scope.pp("stem").block(), scope.pp("rest").block());
        let options = Conv2dOptions::new(2, 1);
        let init = Init::TorchDefault;
        let first = nn::Conv2d::with_init(&stem.pp("conv"), 3, 4, 3, options, init, None)?;
        let second = nn::Conv2d::new(&rest.pp("conv"), 4, 4, 3, Conv2dOptions::new(1, 1).groups(2))?;
        let norm = |scope: &Scope| nn::BatchNorm2d::new(&scope.pp("norm"), 4, BatchNormConfig::default());
        Ok(Self {
            norms: [norm(&stem)?, norm(&rest)?],
            convolutions: [first, second],
            head: nn::Linear::new(&scope.pp("head").block(), 4, 5)?,
        })
    }

    fn batch(step: u64) -> Vec<Tensor> {
        let labels = (0..6).map(|i| (i * i + step as u32) % 5).collect();
        vec![draw("images", step, &[6, 3, 9, 9]), numbers(labels, &[6])]
    }

    fn loss(&self, tape: &Tape, batch: &[Array]) -> Result<Value> {
        let x = self.convolutions[0].forward(tape, &Value::constant(&batch[0]))?;
        let x = self.norms[0].forward(tape, &x, FusedActivation::Relu)?;
        let y = self.convolutions[1].forward(tape, &x)?;
        let y = self.norms[1].forward_added(tape, &y, &x, FusedActivation::Relu)?;
        let y = ops::max_pool2d(tape, &y, PoolOptions::new(3, 2, 1))?;
        let logits = self.head.forward(tape, &ops::global_avg_pool2d(tape, &y)?)?;
        loss::cross_entropy(tape, &logits, &batch[1], 0.1, LossDivisor::Batch)
    }

    fn optimizer() -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.9, true, 0.01))
    }
}

/// Embeddings, causal attention of two heads, layer norm and dropout, which classify each sequence.
pub(crate) struct Tokens {
    table: nn::Embedding,
    norm: nn::LayerNorm,
    attention: nn::MultiHeadAttention,
    head: nn::Linear,
}

impl Net for Tokens {
    fn new(scope: &Scope) -> Result<Self> {
        let block = scope.pp("block").block();
        let init = Init::TorchDefault;
        Ok(Self {
            table: nn::Embedding::new(&scope.pp("table").block(), 11, 8, init)?,
            norm: nn::LayerNorm::new(&block.pp("norm"), 8, 1e-5)?,
            attention: nn::MultiHeadAttention::new(&block.pp("attention"), 8, 2, init, init)?,
            head: nn::Linear::new(&scope.pp("head").block(), 8, 7)?,
        })
    }

    fn batch(step: u64) -> Vec<Tensor> {
        let ids = (0..20).map(|i| (7 * i + 3 * step as u32) % 11).collect();
        let labels = (0..4).map(|i| (i + step as u32) % 7).collect();
        vec![numbers(ids, &[4, 5]), numbers(labels, &[4])]
    }

    fn loss(&self, tape: &Tape, batch: &[Array]) -> Result<Value> {
        let x = self.table.forward(tape, &batch[0])?;
        let mixed =
            self.attention.forward(tape, &self.norm.forward(tape, &x)?, &AttentionOptions::causal())?;
        let x = ops::quick_gelu(tape, &ops::add(tape, &x, &ops::dropout(tape, &mixed, 0.25)?)?)?;
        let pooled = ops::scale(tape, &ops::sum_over(tape, &x, 1)?, 0.2)?;
        loss::cross_entropy(tape, &self.head.forward(tape, &pooled)?, &batch[1], 0.0, LossDivisor::Batch)
    }

    fn optimizer() -> Box<dyn Optimizer> {
        Box::new(Adam::decoupled((0.9, 0.99), 1e-8, 0.1))
    }
}

/// Trains a few steps with a scaled loss, clipping and averages. Returns the losses, the scale's report of the last
/// step, the model's state, the optimizer state and the averages. An overflow on another rank skips the first and the
/// third step. `after` runs before the first step and after every step.
pub(crate) fn train<N: Net>(
    device: &ComputeDevice,
    precision: Precision,
    mut after: impl FnMut(),
) -> Result<Vec<Tensor>> {
    let context = Arc::new(Context::new(2));
    let builder =
        StoreBuilder::new(BuildOptions { key: Key::new(7), device: device.clone(), ..Default::default() });
    let net = N::new(&builder.root())?;
    let store = builder.build()?;
    let params = store.buckets();
    let (mut optimizer, mut ema) = (N::optimizer(), Ema::new(0.5));
    let mut scale = LossScale::dynamic_from(1024.0)?.kept_at(device)?;
    let overflow = device.full(1.0, (), DType::F64)?;
    let (mut all, mut last) = (Vec::new(), None);
    after();
    for step in 0..STEPS {
        let mut session = Session::training(context.clone(), Key::new(1).step(step));
        (session.device, session.precision, session.recompute) =
            (device.clone(), precision, Recompute::Never);
        let tape = Tape::recording(session);
        let batch =
            N::batch(step).iter().map(|tensor| Ok(device.put(tensor)?)).collect::<Result<Vec<_>>>()?;
        let loss = net.loss(&tape, &batch)?;
        store.zero_grads();
        tape.backward_scaled(&loss, scale.factor()?)?;
        let squares = grad_sum_of_squares(params, &context)?;
        let elsewhere =
            |flag: &Array| Ok(if [0, 2].contains(&step) { flag.copy_from(&overflow) } else { Ok(()) }?);
        let scaled = scale.step::<TensorError>(&squares, Some(0.1), &context, elsewhere)?;
        optimizer.scaled_step(params, 0.05, Some(scaled.step()), &context)?;
        ema.scaled_update(params, Some(scaled.step()), &context)?;
        all.push(loss.to_host()?);
        last = Some(scaled);
        after();
    }
    if let Some(last) = last {
        let told = last.read()?;
        let told_of = told.to_vec1::<f64>()?;
        let left_out = told_of[6] as u64;
        assert_eq!((left_out, told_of[0]), (2, 256.0), "of {STEPS} steps");
        optimizer.note_left_out(left_out);
        ema.note_left_out(left_out);
        all.push(told);
    }
    all.extend(state(&store, optimizer.as_ref(), &ema)?);
    Ok(all)
}

fn state(store: &ParamStore, optimizer: &dyn Optimizer, ema: &Ema) -> Result<Vec<Tensor>> {
    let mut all = store.state_dict()?;
    all.extend(optimizer.state(store.buckets())?.1);
    all.extend(ema.state(store.buckets())?.1);
    Ok(all.into_iter().map(|(_, tensor)| tensor).collect())
}
