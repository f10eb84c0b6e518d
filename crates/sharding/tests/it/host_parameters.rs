//! Parameters that are kept on the host and come to a device with the blocks that use them, on opaque arrays:
//! the numbers of parameters that stay there, to the bit, and memory for two units at a time.

use std::sync::Arc;

use crate::checking::{Checking, Transfer};
use candle_core::{Device, Tensor};
use phalanx_sharding::{DataParallel, Observed as _, Options, Strategy};
use phalanx_tensor::optim::{Adam, Ema, Optimizer as _, StateLocation, clip_by_squares, grad_sum_of_squares};
use phalanx_tensor::{
    Block, BuildOptions, ComputeDevice, Context, Init, Key, Param, ParamBucket, ParamState, ParamStore,
    Session, StoreBuilder, Tape, TensorError, Value, nn, ops,
};

use crate::common::on_ranks;

const WIDTH: usize = 6;
const LAYERS: usize = 5;

#[derive(Debug)]
struct Layer {
    name: String,
    linear: nn::Linear,
    /// Added to what the layer makes of its input.
    shift: Option<Param>,
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>, TensorError> {
        let mut x = self.linear.forward(tape, &inputs[0])?;
        if let Some(shift) = &self.shift {
            x = ops::add(tape, &x, &tape.param(shift)?)?;
        }
        Ok(vec![ops::silu(tape, &x)?])
    }
}

/// Layers of a weight and a bias each, in a bucket of their own; the third is not learnt. The last also reads a parameter
/// outside of any block.
fn model(device: &ComputeDevice, offload: bool) -> (Vec<Arc<dyn Block>>, ParamStore) {
    let options = BuildOptions {
        device: device.clone(),
        offload,
        bucket_bytes: 1,
        key: Key::new(7),
        ..BuildOptions::default()
    };
    let builder = StoreBuilder::new(options);
    let root = builder.root();
    let shift = root.param("shift", (2, WIDTH), Init::Normal { mean: 0.0, std: 0.1 }).expect("a new name");
    let layer = |at: usize| -> Arc<dyn Block> {
        let scope = root.pp(format!("layer-{at}")).block();
        let scope = if at == 2 { scope.frozen() } else { scope };
        let name = scope.block_name().to_owned();
        let linear = nn::Linear::new(&scope, WIDTH, WIDTH).expect("new names");
        Arc::new(Layer { name, linear, shift: (at == LAYERS - 1).then(|| shift.clone()) })
    };
    let layers = (0..LAYERS).map(layer).collect();
    (layers, builder.build().expect("small"))
}

fn numbers(tensor: &Tensor) -> Vec<u32> {
    let flat = tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("f32");
    flat.into_iter().map(f32::to_bits).collect()
}

/// Weights after each of some steps, and the averages at the end.
fn train(offload: bool, clip: Option<f64>) -> Vec<Vec<u32>> {
    let checking = Checking::new(Context::new(1));
    let device = ComputeDevice::of(Arc::new(checking.clone()));
    let context = Arc::new(Context::new(1));
    let (layers, store) = model(&device, offload);
    let parallel = match offload {
        true => DataParallel::alone_with(&store, Options::default()).expect("alone"),
        false => DataParallel::alone(&store).expect("alone"),
    };
    let params = store.buckets();
    let mut adam = Adam::decoupled((0.9, 0.99), 1e-8, 0.1).with_state_location(StateLocation::Host);
    let mut ema = Ema::new(0.9).with_state_location(StateLocation::Host);
    let mut weights = Vec::new();
    for at in 0..4 {
        checking.take_transfers();
        let mut step = parallel.begin_step().expect("begins");
        // Two micro-batches.
        for part in 0..2 {
            step.micro_batch(part == 0);
            let session = Session {
                listener: Some(parallel.clone()),
                device: device.clone(),
                ..Session::training(context.clone(), Key::new(3).step(at))
            };
            let tape = Tape::recording(session);
            let batch: Vec<f32> = (0..2 * WIDTH).map(|i| ((i + part) as f32 + at as f32).sin()).collect();
            let batch = Tensor::from_vec(batch, (2, WIDTH), &Device::Cpu).expect("small");
            let mut x = Value::constant(device.put(&batch).expect("crosses"));
            for layer in &layers {
                x = tape.run1(layer, &x).expect("runs");
            }
            tape.backward(&ops::mean(&tape, &ops::mul(&tape, &x, &x).expect("squares")).expect("averages"))
                .expect("differentiates");
        }
        let mut change = |params: &[ParamBucket]| {
            if let Some(most) = clip {
                let squares = grad_sum_of_squares(params, &context)?;
                clip_by_squares(params, &squares, most, &context)?;
            }
            adam.step(params, 0.05, &context)
        };
        step.reduce().expect("alone").update(|params| change(params)).expect("updates");
        ema.update(params, &context).expect("follows");
        if offload {
            is_gone(&parallel, params, &checking.take_transfers());
        }
        let named = store.state_dict().expect("whole, wherever it lies");
        weights.push(named.iter().flat_map(|(_, tensor)| numbers(tensor)).collect());
    }
    let (_, averages) = ema.state(params).expect("reads");
    weights.push(averages.iter().flat_map(|(_, tensor)| numbers(tensor)).collect());
    weights
}

/// Nothing of blocks is left on the device, and what crossed is each unit twice for each micro-batch, and each gradient once.
fn is_gone(parallel: &DataParallel, params: &[ParamBucket], crossed: &[Transfer]) {
    let (inside, outside): (Vec<_>, Vec<_>) = params.iter().partition(|param| param.is_offloaded());
    assert_eq!((inside.len(), outside.len()), (LAYERS, 1), "a parameter outside of any block stays");
    assert!(inside.iter().all(|param| param.state() == ParamState::Sharded), "what blocks use has left");
    assert!(inside.iter().all(|param| param.whole_values().is_some_and(|all| all.array().is_host())));
    assert!(
        outside.iter().all(|param| param.state() == ParamState::Full && !param.storage_device().is_host())
    );
    let unit = WIDTH * WIDTH + WIDTH;
    let count = |way: &dyn Fn(&Transfer) -> bool| crossed.iter().filter(|crossing| way(crossing)).count();
    let up = count(&|crossing| matches!(crossing, Transfer::In(_, dims) if dims == &[unit]));
    let down = count(&|crossing| matches!(crossing, Transfer::Out(_, dims) if dims == &[unit]));
    // Those of the last two blocks are kept from the end of forward to the beginning of backward, once the way is known.
    let passes = 2 * (2 * LAYERS);
    assert!((passes - 4..=passes).contains(&up), "{up} of {passes}");
    assert_eq!(down, LAYERS - 1, "gradients of what is learnt, once a step");
    assert!(parallel.peak_gathered_bytes() <= 2 * 4 * unit as u64, "{}", parallel.peak_gathered_bytes());
}

#[test]
fn parameters_on_the_host_have_the_bits_of_parameters_on_the_device() {
    let there = train(false, None);
    assert!(there[0] != there[3], "something is learnt");
    assert_eq!(there, train(true, None));
    // Clipped, by norms that are added up elsewhere.
    let [there, here] = [false, true].map(|offload| train(offload, Some(0.01)));
    assert!(there[3] != train(false, None)[3], "something is clipped");
    for (a, b) in there.iter().flatten().zip(here.iter().flatten()) {
        let (a, b) = (f32::from_bits(*a), f32::from_bits(*b));
        assert!((a - b).abs() <= 1e-6 * a.abs().max(1e-3), "{a} and {b}");
    }
}

#[test]
fn strategies_with_ranks_that_do_not_update_what_they_hold_refuse() {
    for name in ["dp", "zero1", "zero2"] {
        let errors = on_ranks(2, move |comm| {
            let device = ComputeDevice::of(Arc::new(Checking::new(Context::new(1))));
            let (_, store) = model(&device, true);
            let row = Strategy::named(name).expect("known");
            let made = DataParallel::with_options(
                &store,
                phalanx_sharding::ProcessMesh::suiting(comm, &row, 0).expect("fits"),
                row,
                Options::default(),
            );
            made.map(drop).expect_err("cannot be kept there").to_string()
        });
        for error in errors {
            assert!(error.contains(name) && error.contains("`ddp`, `fsdp` and `hsdp` can"), "{error}");
        }
    }
}
