//! Training steps on a device: the numbers are the CPU's to the bit, and what crosses is the batch, in, and the loss, out.

mod checking;

use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};
use checking::{Checking, Transfer};
use phalanx_tensor::backend::{AdamOptions, Array, Place, SgdOptions};
use phalanx_tensor::loss::{self, Over};
use phalanx_tensor::ops::{self, BatchNormStats, Conv2dOptions, FusedActivation, PoolOptions};
use phalanx_tensor::{BuildOptions, Context, Key, Precision, Result, Session, StoreBuilder, Tape, Value};

const STEPS: u64 = 4;
const LOSS_SCALE: f64 = 1024.0;

fn draw(name: &str, step: u64, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(3).stream(name).step(step).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).and_then(|t| t.to_dtype(DType::F32)).expect("a constant")
}

/// Parameters as views of one flat array, and beside it their gradients, the state of an optimizer, and averages.
struct Flat {
    shapes: Vec<Shape>,
    values: Array,
    grads: Array,
    moments: [Array; 2],
    average: Array,
}

impl Flat {
    fn new(place: &Place, shapes: &[&[usize]]) -> Result<Self> {
        let shapes: Vec<Shape> = shapes.iter().map(|dims| Shape::from(*dims)).collect();
        let len = shapes.iter().map(Shape::elem_count).sum();
        let values = place.put(&(draw("weights", 0, &[len]) * 0.3)?)?;
        let zeros = || place.full(0.0, len, DType::F32);
        let average = values.duplicate()?;
        Ok(Self { shapes, grads: zeros()?, moments: [zeros()?, zeros()?], average, values })
    }

    fn each(&self, flat: &Array) -> Result<Vec<Array>> {
        let mut at = 0;
        let view = |shape: &Shape| {
            let view = flat.view(at, shape.clone());
            at += shape.elem_count();
            view
        };
        self.shapes.iter().map(view).collect()
    }
}

/// A network as a function of its parameters: the loss of a batch that is on the device.
trait Net {
    fn shapes(&self) -> Vec<&'static [usize]>;
    fn batch(&self, step: u64) -> Vec<Tensor>;
    fn loss(&self, tape: &Tape, params: &[Value], batch: &[Array]) -> Result<Value>;
    /// State that is not learned.
    fn buffers(&self) -> Result<Vec<Tensor>>;
}

/// Two convolutions with batch norms, the second over a shortcut, and a classifier.
struct Images {
    buffers: Vec<phalanx_tensor::Buffer>,
}

impl Images {
    fn new(place: &Place) -> Result<Self> {
        let builder = StoreBuilder::new(BuildOptions::default());
        let mut buffers = Vec::new();
        for norm in ["a", "b"] {
            let scope = builder.root().pp(norm);
            for (name, value) in [("mean", 0.0), ("var", 1.0)] {
                buffers.push(scope.buffer(name, 4, value)?);
            }
            buffers.push(scope.counter("count")?);
        }
        for buffer in &buffers {
            buffer.set_array(place.put(&buffer.to_host()?)?)?;
        }
        Ok(Self { buffers })
    }

    fn stats(&self, norm: usize) -> BatchNormStats<'_> {
        let [running_mean, running_var, num_batches] = &self.buffers[3 * norm..3 * norm + 3] else {
            unreachable!("three buffers a norm")
        };
        BatchNormStats { running_mean, running_var, num_batches, momentum: 0.1, eps: 1e-5, sync: false }
    }
}

impl Net for Images {
    fn shapes(&self) -> Vec<&'static [usize]> {
        vec![&[4, 3, 3, 3], &[4], &[4], &[4, 2, 3, 3], &[4], &[4], &[4], &[5, 4], &[5]]
    }

    fn batch(&self, step: u64) -> Vec<Tensor> {
        let labels: Vec<u32> = (0..6).map(|i| (i * i + step as u32) % 5).collect();
        let labels = Tensor::from_vec(labels, 6, &Device::Cpu).expect("six");
        vec![draw("images", step, &[6, 3, 9, 9]), labels]
    }

    fn loss(&self, tape: &Tape, p: &[Value], batch: &[Array]) -> Result<Value> {
        let x = Value::constant(&batch[0]);
        let x = ops::conv2d(tape, &x, &p[0], None, Conv2dOptions::new(2, 1))?;
        let x = ops::batch_norm2d(tape, &x, &p[1], &p[2], &self.stats(0), FusedActivation::Relu, None)?;
        let y = ops::conv2d(tape, &x, &p[3], Some(&p[4]), Conv2dOptions::new(1, 1).groups(2))?;
        let relu = FusedActivation::Relu;
        let y = ops::batch_norm2d(tape, &y, &p[5], &p[6], &self.stats(1), relu, Some(&x))?;
        let y = ops::max_pool2d(tape, &y, PoolOptions::new(3, 2, 1))?;
        let y = ops::global_avg_pool2d(tape, &y)?;
        let logits = ops::linear(tape, &y, &p[7], Some(&p[8]))?;
        loss::cross_entropy(tape, &logits, &batch[1], 0.1, Over::Batch)
    }

    fn buffers(&self) -> Result<Vec<Tensor>> {
        self.buffers.iter().map(phalanx_tensor::Buffer::to_host).collect()
    }
}

/// Embeddings, causal attention of two heads, layer norm, dropout, and a class for each sequence.
struct Tokens;

impl Net for Tokens {
    fn shapes(&self) -> Vec<&'static [usize]> {
        vec![&[11, 8], &[8], &[8], &[24, 8], &[24], &[8, 8], &[8], &[7, 8], &[7]]
    }

    fn batch(&self, step: u64) -> Vec<Tensor> {
        let ids: Vec<u32> = (0..20).map(|i| (7 * i + 3 * step as u32) % 11).collect();
        let labels: Vec<u32> = (0..4).map(|i| (i + step as u32) % 7).collect();
        let ids = Tensor::from_vec(ids, (4, 5), &Device::Cpu).expect("twenty");
        vec![ids, Tensor::from_vec(labels, 4, &Device::Cpu).expect("four")]
    }

    fn loss(&self, tape: &Tape, p: &[Value], batch: &[Array]) -> Result<Value> {
        let x = ops::embedding(tape, &p[0], &batch[0])?;
        let y = ops::layer_norm(tape, &x, &p[1], &p[2], 1e-5)?;
        let all = ops::reshape(tape, &ops::linear(tape, &y, &p[3], Some(&p[4]))?, (4, 5, 3, 2, 4))?;
        let all = ops::permute(tape, &all, &[2, 0, 3, 1, 4])?;
        let third = |index| ops::reshape(tape, &ops::narrow(tape, &all, 0, index, 1)?, (4, 2, 5, 4));
        let mixed = ops::attention(tape, &third(0)?, &third(1)?, &third(2)?, true)?;
        let mixed = ops::reshape(tape, &ops::permute(tape, &mixed, &[0, 2, 1, 3])?, (4, 5, 8))?;
        let mixed = ops::dropout(tape, &ops::linear(tape, &mixed, &p[5], Some(&p[6]))?, 0.25)?;
        let x = ops::quick_gelu(tape, &ops::add(tape, &x, &mixed)?)?;
        let pooled = ops::scale(tape, &ops::sum_over(tape, &x, 1)?, 0.2)?;
        loss::cross_entropy(
            tape,
            &ops::linear(tape, &pooled, &p[7], Some(&p[8]))?,
            &batch[1],
            0.0,
            Over::Batch,
        )
    }

    fn buffers(&self) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }
}

/// Trains a few steps, and gives the losses, the parameters, the averages and the buffers; `after` runs after every step.
fn train(
    net: &dyn Net,
    place: &Place,
    adam: bool,
    precision: Precision,
    mut after: impl FnMut(),
) -> Result<Vec<Tensor>> {
    let context = Arc::new(Context::new(2));
    let backend = place.backend(&context);
    let flat = Flat::new(place, &net.shapes())?;
    let mut all = Vec::new();
    after();
    for step in 0..STEPS {
        let mut session = Session::training(context.clone(), Key::new(1).step(step));
        (session.place, session.precision) = (place.clone(), precision);
        let tape = Tape::recording(session);
        let batch = net.batch(step).iter().map(|tensor| place.put(tensor)).collect::<Result<Vec<_>>>()?;
        let params: Vec<Value> = flat.each(&flat.values)?.into_iter().map(|view| tape.leaf(view)).collect();
        let loss = net.loss(&tape, &params, &batch)?;
        tape.backward_scaled(&loss, LOSS_SCALE)?;
        for (param, to) in params.iter().zip(flat.each(&flat.grads)?) {
            to.copy_from(&tape.leaf_grad(param).expect("all take part"))?;
        }
        backend.scale_by(&flat.grads, &place.full(1.0 / LOSS_SCALE, (), DType::F64)?)?;
        let squares = backend.sum_of_squares(&flat.grads)?;
        backend.scale_by(&flat.grads, &backend.clip_factor(&squares, 0.1)?)?;
        let [first, second] = &flat.moments;
        if adam {
            let options = AdamOptions {
                lr: 0.01,
                betas: (0.9, 0.99),
                eps: 1e-8,
                weight_decay: 0.1,
                decoupled: true,
                step: step + 1,
            };
            backend.adam_step(options, &flat.values, &flat.grads, [first, second])?;
        } else {
            let first_step = step == 0;
            let options =
                SgdOptions { lr: 0.5, momentum: 0.9, nesterov: true, weight_decay: 0.01, first: first_step };
            backend.sgd_step(options, &flat.values, &flat.grads, Some(first))?;
        }
        backend.ema_step(0.5, &flat.average, &flat.values)?;
        all.push(loss.to_host()?);
        after();
    }
    all.extend([flat.values.to_host()?, flat.average.to_host()?]);
    all.extend(net.buffers()?);
    Ok(all)
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u64>> {
    let bits = |tensor: &Tensor| {
        let wide = tensor.to_dtype(DType::F64).and_then(|tensor| tensor.flatten_all()?.to_vec1::<f64>());
        wide.expect("numbers").into_iter().map(f64::to_bits).collect()
    };
    tensors.iter().map(bits).collect()
}

fn agrees(make: impl Fn(&Place) -> Box<dyn Net>, adam: bool) {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let host = Place::host();
        let on_cpu = train(make(&host).as_ref(), &host, adam, precision, || ()).expect("trains on the CPU");
        let first = on_cpu[0].to_scalar::<f32>().expect("a loss");
        let last = on_cpu[STEPS as usize - 1].to_scalar::<f32>().expect("a loss");
        assert!(first.is_finite() && last.is_finite() && first != last, "{first} {last}");

        let checking = Checking::new(Context::new(2));
        let device = Place::device(Arc::new(checking.clone()));
        let net = make(&device);
        let mut crossed = Vec::new();
        let on_device =
            train(net.as_ref(), &device, adam, precision, || crossed.push(checking.take_transfers()));
        assert_eq!(bits(&on_device.expect("trains on the device")), bits(&on_cpu), "{precision}");
        for (step, transfers) in crossed.into_iter().skip(1).enumerate() {
            let batch = net.batch(step as u64).into_iter();
            let mut expected: Vec<_> =
                batch.map(|tensor| Transfer::In(tensor.dtype(), tensor.dims().to_vec())).collect();
            expected.push(Transfer::Out(DType::F32, Vec::new()));
            assert_eq!(transfers, expected, "step {step} at {precision}: the batch in, the loss out");
        }
    }
}

#[test]
fn a_classifier_of_images_trains_with_its_batch_in_and_its_loss_out() {
    agrees(|place| Box::new(Images::new(place).expect("small")), false);
}

#[test]
fn a_network_with_attention_trains_with_its_batch_in_and_its_loss_out() {
    agrees(|_| Box::new(Tokens), true);
}
