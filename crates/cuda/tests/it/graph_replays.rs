//! Graph replays on the software GPU: the bits of eager work with permitted differences between runs, and errors for others.

use std::cell::Cell;

use phalanx_cuda::blas::{Blas, Matrix, Product};
use phalanx_cuda::kernels::{self, Dropout, StepInputs, StreamKey};
use phalanx_cuda::{ElementType, Gpu, GpuError, Graph, GraphReplay, Result, Slice, Stream};
use phalanx_kernels::{AdamOptions, BinaryOp, UnaryOp};

use crate::harness::{gpu, random};
use crate::software;

const F32: ElementType = ElementType::F32;

/// A product with trained weights, in temporary memory.
struct Training<'a> {
    gpu: &'a Gpu,
    blas: Blas,
    weights: Slice,
    moments: [Slice; 2],
    /// The gradients of a bucket that another stream reduces.
    reduced: Slice,
}

impl<'a> Training<'a> {
    fn new(gpu: &'a Gpu) -> Self {
        let zeros = || gpu.zeros(F32, 64).unwrap();
        Self {
            gpu,
            blas: Blas::new(gpu).unwrap(),
            weights: gpu.upload(&random(3, 64)).unwrap(),
            moments: [zeros(), zeros()],
            reduced: zeros(),
        }
    }

    /// Runs a step with uploads, scalars, random numbers, a download, another stream, and an update in three of four steps.
    fn step(&self, step: u64) -> Result<(Slice, f32)> {
        let gpu = self.gpu;
        let batch = gpu.upload(&random(100 + step, 64))?;
        let hidden = gpu.unwritten(F32, 64)?;
        let (a, b) = (Matrix::plain(&batch), Matrix::plain(&self.weights));
        let product = Product { sizes: [1, 8, 8, 8], a, b, to: &hidden, add: false, bias: None, tf32: false };
        self.blas.matmul(&product)?;
        let key = StreamKey { seed: 7, step, rank: 0, stream: 5 };
        let hidden = kernels::affine(gpu, &hidden, 1.0 / step as f64, 0.1)?;
        let hidden = kernels::dropout(gpu, &hidden, 8, Dropout { key, p: 0.4, first_sample: 2, part: None })?;
        let more = gpu.upload(&random(200 + step, 64))?;
        let hidden = kernels::binary(gpu, BinaryOp::Mul, (&hidden, &[64]), (&more, &[64]), F32)?;
        let loss = kernels::sum_of_squares(gpu, &hidden)?;
        // A downloaded number may decide whether the step is taken.
        let seen = gpu.download::<f64>(&loss)?[0];
        let grads = kernels::unary(gpu, UnaryOp::Tanh, &hidden)?;
        let device = gpu.device();
        device.wait(Stream::Communication, Stream::Compute)?;
        self.reduced.copy_from_on(&grads, Stream::Communication)?;
        let doubled = kernels::affine(gpu, &hidden, 2.0, 0.0)?;
        device.wait(Stream::Compute, Stream::Communication)?;
        if !step.is_multiple_of(4) {
            let options = AdamOptions {
                lr: 0.01 / step as f64,
                betas: (0.9, 0.99),
                eps: 1e-8,
                weight_decay: 0.1,
                decoupled: true,
                step,
            };
            kernels::accumulate(gpu, &self.reduced, &doubled)?;
            let inputs = StepInputs::new(&self.weights, &self.reduced);
            kernels::adam_step(gpu, options, inputs, self.moments.each_ref())?;
        }
        // Without an update there is nothing to download.
        let norm = match step.is_multiple_of(4) {
            true => 0.0,
            false => gpu.download::<f32>(&self.weights)?[3],
        };
        Ok((doubled, norm + seen as f32))
    }

    fn bits(&self) -> Vec<u32> {
        let [first, second] = &self.moments;
        let all = [&self.weights, first, second].into_iter();
        all.flat_map(|slice| self.gpu.download::<f32>(slice).unwrap()).map(f32::to_bits).collect()
    }
}

#[test]
fn replays_have_the_bits_of_eager_steps() {
    for seed in ["1", "2", "3"] {
        software::run_anywhere_with(&[("SOFTWARE_GPU_SEED", seed)], || {
            let gpu = &gpu();
            // A step without an update may be the recorded one.
            for first in [1, 2] {
                let (eager, replayed) = (Training::new(gpu), Training::new(gpu));
                let mut replay = GraphReplay::new(gpu);
                let mut held = Vec::new();
                for step in first..first + 9 {
                    let expected = eager.step(step).unwrap();
                    let (left, seen) = replay.run(|| replayed.step(step)).unwrap();
                    assert_eq!(seen.to_bits(), expected.1.to_bits(), "step {step}");
                    assert_eq!(
                        gpu.download::<f32>(&left).unwrap(),
                        gpu.download::<f32>(&expected.0).unwrap()
                    );
                    assert_eq!(replayed.bits(), eager.bits(), "step {step}");
                    let (graphs, work) = replay.recorded();
                    assert!((step >= first + 2) == (graphs > 0), "{graphs} graphs after step {step}");
                    if graphs > 0 {
                        held.push((graphs, work, replay.bytes(), gpu.pool().usage().total()));
                    }
                }
                // After a step of each kind, no more is recorded or allocated.
                assert!(held[3..].windows(2).all(|pair| pair[0] == pair[1]), "{held:?}");
                assert_eq!(held[5].0, 4, "graphs before the loss, the copy and the wait, and after them");
            }
        });
        if software::is_inside() {
            break;
        }
    }
}

#[test]
fn memory_is_reused_and_released() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let size = 4 << 20;
        let chain = |by: f64| -> Result<Slice> {
            let mut x = gpu.upload(&vec![by as f32; size / 4])?;
            for _ in 0..9 {
                x = kernels::affine(gpu, &x, 1.0, 1.0)?;
            }
            Ok(x)
        };
        let mut replay = GraphReplay::new(gpu);
        for run in 0..6 {
            let output = replay.run(|| chain(f64::from(run))).unwrap();
            assert_eq!(gpu.download::<f32>(&output).unwrap()[..2], [run as f32 + 9.0; 2]);
        }
        assert_eq!(
            replay.bytes(),
            3 * size,
            "the upload's own memory, and two of the chain's arrays at a time"
        );
        assert_eq!(replay.recorded(), (1, 9));
        drop(replay);
        gpu.synchronize().unwrap();
        assert_eq!(gpu.pool().usage().total(), 0);
    });
}

#[test]
fn work_that_differs_from_the_recording_is_named_in_the_error() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let x = gpu.upload(&random(1, 64)).unwrap();
        let blas = Blas::new(gpu).unwrap();
        let odd = Cell::new(0);
        let body = || -> Result<Slice> {
            let y = kernels::affine(gpu, &x, 2.0, 0.0)?;
            match odd.get() {
                1 => drop(kernels::neg(gpu, &y)?),
                2 => drop(gpu.download::<f32>(&y)?),
                3 => drop(gpu.unwritten(F32, 1000)?),
                _ => {}
            }
            let to = gpu.zeros(F32, 64)?;
            let from = if odd.get() == 4 { &x } else { &y };
            let (a, b) = (Matrix::plain(from), Matrix::plain(&x));
            blas.matmul(&Product {
                sizes: [1, 8, 8, 8],
                a,
                b,
                to: &to,
                add: false,
                bias: None,
                tf32: false,
            })?;
            kernels::affine(gpu, &to, 0.5, 0.0)
        };
        let expected = gpu.download::<f32>(&body().unwrap()).unwrap();
        drop(kernels::neg(gpu, &x).unwrap());
        let mut replay = GraphReplay::new(gpu);
        for (wrong, words) in [
            (1, "`neg_f32` is not what was recorded: `zero`"),
            (2, "work that cannot be part of a graph` is not what was recorded: `zero` came first"),
            (3, "memory of 4000 bytes"),
            (4, "`matmul` is not what was recorded: `matmul`, or the same work with other memory"),
        ] {
            for _ in 0..4 {
                let output = replay.run(body).unwrap();
                assert_eq!(gpu.download::<f32>(&output).unwrap(), expected);
            }
            assert!(replay.recorded().0 > 0);
            odd.set(wrong);
            // Even if the caller drops the error.
            let error = replay.run(|| body().map(drop).or(Ok(()))).unwrap_err();
            assert!(matches!(error, GpuError::Replay { .. }), "{error:?}");
            assert!(error.to_string().contains(words), "{error}");
            odd.set(0);
        }
        let mine = replay.run(|| Err::<(), _>(GpuError::argument("mine", "of the body")));
        assert_eq!(mine.unwrap_err(), GpuError::argument("mine", "of the body"));
        let inside = replay.run(|| GraphReplay::new(gpu).run(body));
        assert!(inside.is_ok(), "its first runs are as always");
        let mut other = GraphReplay::new(gpu);
        for _ in 0..3 {
            other.run(body).unwrap();
        }
        for inner in [true, false] {
            let error = match inner {
                true => replay.run(|| other.run(body)).unwrap_err(),
                false => replay.run(|| Graph::capture(gpu, None, body).map(drop)).unwrap_err(),
            };
            assert!(matches!(&error, GpuError::Capture { .. }), "{error}");
        }
        let output = replay.run(body).unwrap();
        assert_eq!(gpu.download::<f32>(&output).unwrap(), expected);
    });
}

#[test]
fn memory_of_other_owners_outlives_the_launch() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let mut replay = GraphReplay::new(gpu);
        for run in 0..6 {
            let mut given = Some(gpu.upload(&[run as f32; 64]).unwrap());
            let output = replay.run(|| -> Result<Slice> {
                let doubled = kernels::affine(gpu, given.as_ref().unwrap(), 2.0, 0.0)?;
                given = None;
                // Another owner would get the memory now.
                kernels::affine(gpu, &doubled, 1.0, 1.0)
            });
            assert_eq!(gpu.download::<f32>(&output.unwrap()).unwrap(), [2.0 * run as f32 + 1.0; 64]);
        }
        assert_eq!(replay.recorded(), (1, 2));
    });
}

#[test]
fn each_branch_has_its_own_recording() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let blas = Blas::new(gpu).unwrap();
        let weights = gpu.upload(&random(1, 64)).unwrap();
        let body = |rows: usize| -> Result<Slice> {
            let x = kernels::affine(gpu, &weights, 2.0, 0.0)?;
            gpu.branch(rows as u64)?;
            let batch = gpu.upload(&random(rows as u64, 8 * rows))?;
            let to = gpu.unwritten(F32, 8 * rows)?;
            let (a, b) = (Matrix::plain(&batch), Matrix::plain(&x));
            blas.matmul(&Product {
                sizes: [1, rows, 8, 8],
                a,
                b,
                to: &to,
                add: false,
                bias: None,
                tf32: false,
            })?;
            kernels::affine(gpu, &to, 0.5, 0.0)
        };
        let mut replay = GraphReplay::new(gpu);
        let mut held = Vec::new();
        for run in 0..24 {
            // First products of new sizes occur in a run that would be recorded.
            let rows = [8, 8, 3, 8, 5, 3][run % 6];
            let output = replay.run(|| body(rows)).unwrap();
            let found = gpu.download::<f32>(&output).unwrap();
            assert_eq!(found, gpu.download::<f32>(&body(rows).unwrap()).unwrap(), "run {run}");
            held.push((replay.recorded(), replay.bytes()));
        }
        // The common beginning, and a graph of two pieces for each branch.
        assert_eq!(held[23].0, (4, 7));
        assert!(held[10..].windows(2).all(|pair| pair[0] == pair[1]), "{held:?}");
        // Branches beyond the limit run eagerly.
        for rows in (10..60).chain(10..60) {
            let output = replay.run(|| body(rows)).unwrap();
            let found = gpu.download::<f32>(&output).unwrap();
            assert_eq!(found, gpu.download::<f32>(&body(rows).unwrap()).unwrap(), "{rows} rows");
        }
        assert!(replay.is_full());
        let mut held = Vec::new();
        for run in 0..30 {
            let output = replay.run(|| body(50 + run % 3)).unwrap();
            assert_eq!(output.len(), 8 * (50 + run % 3));
            // Uploads are kept until they have arrived.
            gpu.synchronize().unwrap();
            held.push(replay.bytes());
        }
        assert_eq!(held[5], held[29], "what leaves runs that are not recorded is used again");
        assert!(replay.recorded().0 <= 33, "{:?}", replay.recorded());
    });
}

#[test]
fn first_uses_are_recorded_later() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let x = gpu.upload(&random(1, 64)).unwrap();
        let mut replay = GraphReplay::new(gpu);
        let late = Cell::new(false);
        let body = || -> Result<Slice> {
            let y = kernels::affine(gpu, &x, 2.0, 0.0)?;
            match late.get() {
                true => kernels::unary(gpu, UnaryOp::Exp, &y),
                false => kernels::affine(gpu, &y, 1.0, 0.0),
            }
        };
        replay.run(body).unwrap();
        replay.run(body).unwrap();
        late.set(true);
        let expected: Vec<f32> = {
            let output = replay.run(body).unwrap();
            assert_eq!(replay.recorded(), (0, 0));
            gpu.download(&output).unwrap()
        };
        for _ in 0..3 {
            let output = replay.run(body).unwrap();
            assert_eq!(replay.recorded(), (1, 2));
            assert_eq!(gpu.download::<f32>(&output).unwrap(), expected);
        }
        // Loading a kernel here differs from the recording.
        let error = replay.run(|| {
            kernels::affine(gpu, &x, 2.0, 0.0)?;
            kernels::unary(gpu, UnaryOp::Sigmoid, &x)
        });
        assert!(matches!(error, Err(GpuError::Replay { .. })), "{error:?}");
    });
}
