//! Fibres as a block's threads: barriers, shuffles and votes work, and wrong uses of them are found.

use phalanx_cuda::launch::Launch;
use phalanx_cuda::{ElementType, GpuError, Source};

use crate::harness::gpu;
use crate::software;

macro_rules! source {
    ($name:literal, $text:literal) => {
        Source { name: $name, parts: &[include_str!("../../kernels/prelude.cuh"), $text] }
    };
}

/// Correct uses.
const RIGHT: Source = source!(
    "fibres_right",
    "KERNEL(warps, 256, const float *x, float *y, u32 *votes) {
        const int i = threadIdx.x, lane = i & 31;
        y[i] = __shfl_down_sync(WHOLE_WARP, x[i], 3) + 100 * __shfl_up_sync(WHOLE_WARP, x[i], 2);
        y[256 + i] = __shfl_sync(WHOLE_WARP, x[i], 31 - lane);
        votes[i] = __ballot_sync(WHOLE_WARP, x[i] > 10 && lane % 3 == 0);
        // Half a warp by itself.
        if (lane < 16) y[512 + i] = __shfl_xor_sync(0xffff, x[i], 8);
        else y[512 + i] = -1;
    }
    KERNEL(blocks, 256, const double *x, double *y, int *any) {
        __shared__ double shared[32];
        y[blockIdx.x * 2] = block_reduce<Add>(x[blockIdx.x * blockDim.x + threadIdx.x], shared);
        y[blockIdx.x * 2 + 1] = block_reduce<Larger>(x[blockIdx.x * blockDim.x + threadIdx.x], shared);
        any[blockIdx.x] = __syncthreads_or(threadIdx.x == 77 && blockIdx.x == 1);
    }
    KERNEL(turns, 256, const u32 *x, u32 *y) {
        extern_row;
        row[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        for (int step = 0; step < 8; ++step) {
            const u32 next = row[(threadIdx.x + 1) % blockDim.x];
            __syncthreads();
            row[threadIdx.x] = next;
            __syncthreads();
        }
        y[threadIdx.x] = row[threadIdx.x];
    }"
);

/// [`RIGHT`] with its array in shared memory.
const SHARED: Source = Source {
    name: "fibres_shared",
    parts: &["#define extern_row __shared__ u32 row[256]\n", RIGHT.parts[0], RIGHT.parts[1]],
};

/// Wrong uses.
const WRONG: Source = source!(
    "fibres_wrong",
    "KERNEL(left_early, 256, float *y) {
        if (threadIdx.x == 5) return;
        __syncthreads();
        y[threadIdx.x] = 1;
    }
    KERNEL(elsewhere, 256, float *y) {
        if (threadIdx.x < 32) {
            __syncthreads();
            y[0] = 1;
        } else {
            __syncthreads();
            y[1] = 1;
        }
    }
    KERNEL(part_of_a_warp, 256, float *y) { y[threadIdx.x] = __shfl_xor_sync(WHOLE_WARP, 1.0f, 1); }
    KERNEL(waits_without_partner, 256, float *y) {
        if (threadIdx.x % 2) y[threadIdx.x] = __shfl_xor_sync(WHOLE_WARP, 1.0f, 1);
        else __syncthreads();
    }
    KERNEL(small, 32, float *y) { y[0] = 1; }
    KERNEL(races, 256, float *y) {
        __shared__ float row[256];
        row[threadIdx.x] = threadIdx.x;
        y[threadIdx.x] = row[255 - threadIdx.x];
    }"
);

#[test]
fn shuffles_votes_and_barriers_work_as_on_a_gpu() {
    for order in ["0", "1", "5"] {
        software::run_with(&[("SOFTWARE_GPU_ORDER", order)], || {
            let gpu = gpu();
            let values: Vec<f32> = (0..256).map(|i| (i * 7 % 64) as f32).collect();
            let (x, y) = (gpu.upload(&values).unwrap(), gpu.unwritten(ElementType::F32, 768).unwrap());
            let votes = gpu.unwritten(ElementType::U32, 256).unwrap();
            Launch::of(&gpu, &SHARED, "warps")
                .over(256, 256)
                .slice(&x)
                .slice(&y)
                .slice(&votes)
                .run()
                .unwrap();
            let (y, votes) = (gpu.download::<f32>(&y).unwrap(), gpu.download::<u32>(&votes).unwrap());
            for i in 0..256 {
                let (first, lane) = (i - i % 32, i % 32);
                let at = |lane: usize| values[first + lane];
                let (down, up) =
                    (if lane + 3 > 31 { lane } else { lane + 3 }, if lane < 2 { lane } else { lane - 2 });
                assert_eq!(y[i], at(down) + 100.0 * at(up), "down and up at {i}");
                assert_eq!(y[256 + i], at(31 - lane), "turned at {i}");
                let expected =
                    (0..32).filter(|l| l % 3 == 0 && at(*l) > 10.0).fold(0, |bits, l| bits | 1 << l);
                assert_eq!(votes[i], expected, "votes at {i}");
                assert_eq!(y[512 + i], if lane < 16 { at(lane ^ 8) } else { -1.0 }, "half a warp at {i}");
            }
            let numbers: Vec<f64> = (0..288).map(|i| f64::from(i * 37 % 101)).collect();
            let (x, y) = (gpu.upload(&numbers).unwrap(), gpu.unwritten(ElementType::F64, 6).unwrap());
            let any = gpu.unwritten(ElementType::U32, 3).unwrap();
            Launch::of(&gpu, &SHARED, "blocks").over(288, 96).slice(&x).slice(&y).slice(&any).run().unwrap();
            let y = gpu.download::<f64>(&y).unwrap();
            for (block, numbers) in numbers.chunks(96).enumerate() {
                assert_eq!(y[2 * block], numbers.iter().sum::<f64>());
                assert_eq!(y[2 * block + 1], numbers.iter().copied().fold(f64::MIN, f64::max));
            }
            assert_eq!(gpu.download::<u32>(&any).unwrap(), [0, 1, 0]);
            let numbers: Vec<u32> = (0..200).collect();
            let (x, y) = (gpu.upload(&numbers).unwrap(), gpu.unwritten(ElementType::U32, 200).unwrap());
            Launch::of(&gpu, &SHARED, "turns").over(200, 200).slice(&x).slice(&y).run().unwrap();
            let expected: Vec<u32> = (0..200).map(|i| (i + 8) % 200).collect();
            assert_eq!(gpu.download::<u32>(&y).unwrap(), expected);
        });
        if software::is_inside() {
            break;
        }
    }
}

/// Runs a kernel with one block.
fn one_block(kernel: &str, threads: usize) -> Vec<f32> {
    let gpu = gpu();
    let y = gpu.zeros(ElementType::F32, 256).unwrap();
    Launch::of(&gpu, &WRONG, kernel).over(threads, threads).slice(&y).run().unwrap();
    gpu.download::<f32>(&y).unwrap()
}

#[test]
fn a_barrier_that_a_thread_never_reaches_is_found() {
    software::refused("left_early", || drop(one_block("left_early", 64)));
}

#[test]
fn barriers_at_different_lines_are_found() {
    software::refused("threads of a block wait at different barriers", || drop(one_block("elsewhere", 64)));
}

#[test]
fn lanes_that_do_not_exist_are_found() {
    software::refused("lanes that do not exist", || drop(one_block("part_of_a_warp", 40)));
}

#[test]
fn deadlocks_are_found() {
    software::refused("threads wait for others", || drop(one_block("waits_without_partner", 32)));
}

#[test]
fn more_threads_than_a_kernels_bound_are_refused() {
    software::run(|| {
        let gpu = gpu();
        let y = gpu.zeros(ElementType::F32, 1).unwrap();
        let launch = |threads| Launch::of(&gpu, &WRONG, "small").over(threads, threads).slice(&y).run();
        launch(32).unwrap();
        assert!(matches!(launch(64), Err(GpuError::Driver { .. })));
    });
}

#[test]
fn races_depend_on_the_order_of_threads() {
    let right: Vec<f32> = (0..256).map(|i| 255.0 - i as f32).collect();
    for order in ["0", "1"] {
        software::run_with(&[("SOFTWARE_GPU_ORDER", order)], || {
            // In any order, half of the threads read before the others have written.
            assert_ne!(one_block("races", 256), right);
        });
        if software::is_inside() {
            break;
        }
    }
}
