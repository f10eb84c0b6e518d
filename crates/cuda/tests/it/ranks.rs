//! Reductions and gathers of slices of several GPUs between kernels, as in sharded training.

use phalanx_collectives::{
    BoxError, Communicator, DType, DeviceMut, FlatBuffer, ReduceOp, SliceMut, nccl, threads,
};
use phalanx_cuda::launch::Launch;
use phalanx_cuda::memory::LibrarySlice;
use phalanx_cuda::{ElementType, Gpu, Slice, Source};

use crate::harness::{KERNEL_MACRO, gpu_at};
use crate::software;

const SOURCE: Source = Source {
    name: "ranks",
    parts: &[
        KERNEL_MACRO,
        "KERNEL(scale_f32, 256, float *x, float by, long long count) {
            long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
            if (i < count) x[i] *= by;
        }\n",
    ],
};

/// A slice as a buffer of collectives.
struct Flat(LibrarySlice);

impl Flat {
    fn of(slice: &Slice) -> Self {
        Self(slice.for_library())
    }
}

impl FlatBuffer for Flat {
    fn dtype(&self) -> DType {
        match self.0.slice().dtype() {
            ElementType::Bf16 => DType::BF16,
            _ => DType::F32,
        }
    }

    fn len(&self) -> usize {
        self.0.slice().len()
    }

    fn with_slice_mut(&mut self, _: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        Err("it lies on a GPU".into())
    }

    fn device(&mut self) -> Option<DeviceMut<'_>> {
        let (dtype, compute) = (self.dtype(), self.0.compute().clone());
        Some(DeviceMut::of_bytes(self.0.bytes(), dtype, &compute))
    }
}

fn scale(gpu: &Gpu, x: &Slice, by: f32) {
    let launch = Launch::of(gpu, &SOURCE, "scale_f32").over(x.len(), 256).slice(x);
    launch.number(by).number(x.len() as i64).run().expect("a kernel");
}

/// Runs `f` on each of `sizes` GPUs, with random delays of their streams.
fn on_gpus(sizes: &[usize], f: fn(&Gpu, &Communicator)) {
    let settings = [("SOFTWARE_GPU_COUNT", "4"), ("SOFTWARE_GPU_DELAY", "3000")];
    software::run_with(&settings, || {
        for size in sizes {
            let ranks = threads(*size).expect("threads").into_iter().map(|world| {
                std::thread::spawn(move || {
                    let gpu = gpu_at(world.rank());
                    let context = gpu.device().context().clone();
                    let comm = nccl::communicator(&world, context).expect("all ranks come");
                    f(&gpu, &comm);
                    gpu.synchronize().expect("sound");
                })
            });
            ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().expect("no panic"));
        }
    });
}

#[test]
fn gradients_are_reduced_between_kernels() {
    on_gpus(&[1, 2, 4], |gpu, comm| {
        let (rank, world) = (comm.rank() as f32, comm.world_size() as f32);
        let buckets: Vec<Slice> =
            (0..4).map(|_| gpu.upload(&vec![rank + 1.0; 1000]).expect("memory")).collect();
        for _ in 0..3 {
            // Each bucket is reduced while the next one is computed.
            let mut under_way = Vec::new();
            for bucket in &buckets {
                scale(gpu, bucket, 2.0);
                under_way.push(comm.all_reduce_async(Flat::of(bucket), ReduceOp::Sum));
            }
            for (bucket, handle) in buckets.iter().zip(under_way) {
                drop(handle.wait().expect("sound"));
                scale(gpu, bucket, 0.5);
            }
        }
        let ranks = world * (world + 1.0) / 2.0;
        let expected = vec![ranks * world * world; 1000];
        for bucket in &buckets {
            assert_eq!(gpu.download::<f32>(bucket).expect("values"), expected);
        }
        comm.check().expect("a sound world");
    });
}

#[test]
fn buckets_are_gathered_used_and_freed_in_a_pipeline() {
    on_gpus(&[2, 3], |gpu, comm| {
        let (rank, world) = (comm.rank(), comm.world_size());
        let len = 1001;
        let own = rank * len / world..(rank + 1) * len / world;
        let shard = gpu.upload(&vec![rank as f32 + 1.0; own.len()]).expect("memory");
        let gather = || {
            let whole = gpu.unwritten(ElementType::F32, len).expect("memory");
            (comm.all_gather_into_async(Flat::of(&whole), Flat::of(&shard)), whole)
        };
        let mut next = gather();
        for step in 0..6 {
            let (handle, whole) = std::mem::replace(&mut next, gather());
            drop(handle.wait().expect("sound"));
            scale(gpu, &whole, 3.0);
            let (first, last) =
                (whole.view(0..1).expect("a view"), whole.view(len - 1..len).expect("a view"));
            if step == 5 {
                assert_eq!(gpu.download::<f32>(&first).expect("a value"), [3.0]);
                assert_eq!(gpu.download::<f32>(&last).expect("a value"), [3.0 * world as f32]);
            }
            // Its gradient goes to the shards, without waiting.
            let part = gpu.unwritten(ElementType::F32, own.len()).expect("memory");
            drop(comm.reduce_scatter_into_async(Flat::of(&whole), Flat::of(&part), ReduceOp::Sum));
            if step == 5 {
                let expected = vec![3.0 * world as f32 * (rank as f32 + 1.0); own.len()];
                assert_eq!(gpu.download::<f32>(&part).expect("values"), expected);
            }
        }
    });
}
