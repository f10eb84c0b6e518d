//! Devices, streams, memory and launches on the software GPU: correct uses work, and wrong uses are found.

use phalanx_cuda::compile::Compiler;
use phalanx_cuda::launch::Launch;
use phalanx_cuda::memory::{Pinned, counted_as};
use phalanx_cuda::{Device, ElementType, Gpu, GpuError, Kind, Options, Slice, Source, Stream, Timer};

use crate::harness::{KERNEL_MACRO, gpu};
use crate::software;

const SOURCE: Source = Source {
    name: "test",
    parts: &[
        KERNEL_MACRO,
        "struct Row { int at[3]; };
        KERNEL(axpy_f32, 256, const float *x, float *y, float a, long long count, Row add) {
            long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
            if (i < count) y[i] += a * x[i] + add.at[i % 3];
        }
        KERNEL(reverse_f32, 256, const float *x, float *y) {
            __shared__ float row[256];
            row[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            y[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
        }
        KERNEL(wild_f32, 256, float *y, long long at) { y[at] = 1; }\n",
    ],
};

fn axpy(gpu: &Gpu, x: &Slice, y: &Slice, stream: Stream) -> Result<(), GpuError> {
    let launch = Launch::of(gpu, &SOURCE, "axpy_f32").over(x.len(), 256).on(stream).slice(x).slice(y);
    launch.number(2.0_f32).number(x.len() as i64).number([10_i32, 20, 30]).run()
}

#[test]
fn a_kernel_is_compiled_launched_and_read_back() {
    software::run(|| {
        let gpu = gpu();
        let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let (x, y) = (gpu.upload(&values).unwrap(), gpu.zeros(ElementType::F32, 1000).unwrap());
        for _ in 0..3 {
            axpy(&gpu, &x, &y, Stream::Compute).unwrap();
        }
        let expected: Vec<f32> =
            (0..1000).map(|i| 3.0 * (2.0 * i as f32 + [10.0, 20.0, 30.0][i % 3])).collect();
        assert_eq!(gpu.download::<f32>(&y).unwrap(), expected);
        let (some, to) = (x.view(100..356).unwrap(), gpu.unwritten(ElementType::F32, 256).unwrap());
        Launch::of(&gpu, &SOURCE, "reverse_f32").over(256, 256).slice(&some).slice(&to).run().unwrap();
        let reversed: Vec<f32> = values[100..356].iter().rev().copied().collect();
        assert_eq!(gpu.download::<f32>(&to).unwrap(), reversed);
    });
}

#[test]
fn the_device_reports_its_properties_and_errors() {
    software::run_with(&[("SOFTWARE_GPU_COUNT", "2")], || {
        assert_eq!(Device::count().unwrap(), 2);
        assert_eq!(Gpu::new(2, &Options::default()).unwrap_err(), GpuError::NoDevice { index: 2, count: 2 });
        let gpu = gpu();
        let description = gpu.device().description();
        assert_eq!(gpu.device().pci_address().unwrap(), "fff0:01:00.0");
        assert_eq!((description.capability, description.multiprocessors), ((9, 0), 4));
        assert!(description.name.contains("software GPU"));
        let other = Gpu::new(1, &Options::default()).unwrap();
        let (x, y) = (gpu.upload(&[1.0_f32]).unwrap(), other.upload(&[1.0_f32]).unwrap());
        // Streams of separate handles of one GPU are not ordered, either.
        let again = Gpu::new(0, &Options::default()).unwrap();
        assert!(x.copy_from_on(&again.upload(&[1.0_f32]).unwrap(), Stream::Compute).is_err());
        assert!(matches!(axpy(&gpu, &x, &y, Stream::Compute), Err(GpuError::Argument { .. })));
        assert!(matches!(x.copy_from_on(&y, Stream::Compute), Err(GpuError::Argument { .. })));
        let launch = Launch::of(&gpu, &SOURCE, "nothing_f32").slice(&x);
        assert!(matches!(launch.run(), Err(GpuError::NoKernel { .. })));
        let launch = Launch::of(&gpu, &SOURCE, "axpy_f32").slice(&x).slice(&x).number(1.0_f64);
        assert!(launch.run().unwrap_err().to_string().contains("parameters have [8, 8, 4, 8, 12]"));
        const WRONG: Source = Source { name: "wrong", parts: &["KERNEL(a, 32, float *x) { x = y; }"] };
        let error = Launch::of(&gpu, &WRONG, "a").slice(&x).run().unwrap_err();
        assert!(
            matches!(&error, GpuError::Compile { log, .. } if log.contains("‘y’") || log.contains("'y'")),
            "{error}"
        );
        assert!(
            y.view(0..2).is_err()
                && gpu.download::<f64>(&x).is_err()
                && x.upload_on(&[1_u8], Stream::Compute).is_err()
        );
    });
}

#[test]
fn a_timer_measures_work_on_streams() {
    software::run(|| {
        let gpu = gpu();
        let (x, y) = (gpu.zeros(ElementType::F32, 1000).unwrap(), gpu.zeros(ElementType::F32, 1000).unwrap());
        let mut timer = Timer::new(gpu.device()).unwrap();
        assert_eq!(timer.seconds(false), Ok(Some(Vec::new())));
        gpu.device().wait(Stream::Communication, Stream::Compute).unwrap();
        for stream in [Stream::Communication, Stream::Compute] {
            timer.record(stream).unwrap();
            axpy(&gpu, &x, &y, stream).unwrap();
            timer.record(stream).unwrap();
            gpu.device().wait(Stream::Compute, Stream::Communication).unwrap();
        }
        let told = timer.seconds(true).unwrap().expect("it has waited");
        assert_eq!(timer.seconds(false), Ok(Some(told.clone())), "all have come");
        assert!(told.len() == 4 && told[0] == 0.0 && told.is_sorted(), "{told:?}");
    });
}

#[test]
fn an_old_driver_has_no_timer() {
    software::run_with(&[("SOFTWARE_GPU_DRIVER", "12040")], || {
        let error = Timer::new(gpu().device()).unwrap_err().to_string();
        assert!(error.contains("a driver of CUDA 12.4; 12.8 or newer is needed"), "{error}");
    });
}

#[test]
fn memory_is_counted_and_runs_out_with_a_message() {
    software::run_with(&[("SOFTWARE_GPU_MEMORY", "1000000")], || {
        let gpu = gpu();
        let weights = counted_as(Kind::Parameters, || gpu.zeros(ElementType::F32, 100_000)).unwrap();
        let view = weights.view(5..10).unwrap();
        drop(weights);
        let other = gpu.zeros(ElementType::Bf16, 100_000).unwrap();
        let held = gpu.pool().usage();
        assert_eq!((held.of(Kind::Parameters), held.of(Kind::Activations)), (400_000, 200_000));
        let error = counted_as(Kind::Optimizer, || gpu.unwritten(ElementType::F64, 100_000)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("800000 bytes of device memory for optimizer"), "{text}");
        assert!(text.contains("400000 bytes of parameters"), "{text}");
        drop((view, other));
        gpu.synchronize().unwrap();
        let (free, all) = gpu.device().memory().unwrap();
        assert_eq!((free, all, gpu.pool().usage().total()), (1_000_000, 1_000_000, 0));
        assert_eq!(gpu.pool().usage().peak_total, 600_000);
    });
}

#[test]
fn streams_are_ordered_by_events_and_copies_are_concurrent() {
    software::run_with(&[("SOFTWARE_GPU_DELAY", "3000")], || {
        let gpu = gpu();
        let device = gpu.device().clone();
        let (x, y) = (gpu.upload(&[1.0_f32; 64]).unwrap(), gpu.zeros(ElementType::F32, 64).unwrap());
        let mut pinned = Some(Pinned::<f32>::new(&device, 64).unwrap());
        for step in 1..20 {
            device.wait(Stream::Communication, Stream::Compute).unwrap();
            axpy(&gpu, &x, &y, Stream::Communication).unwrap();
            device.wait(Stream::Copies, Stream::Communication).unwrap();
            let arriving = pinned.take().unwrap().download_from(&y, Stream::Copies).unwrap();
            device.wait(Stream::Compute, Stream::Copies).unwrap();
            axpy(&gpu, &x, &y, Stream::Compute).unwrap();
            let mut values = arriving.finish().unwrap();
            assert_eq!(values.values()[..2], [12.0 * (2 * step - 1) as f32, 22.0 * (2 * step - 1) as f32]);
            values.values_mut().fill(step as f32);
            pinned = Some(values);
        }
        let leaving = pinned.unwrap().upload_to(&x, Stream::Compute).unwrap();
        leaving.make_wait(Stream::Compute).unwrap();
        assert_eq!(gpu.download::<f32>(&x).unwrap(), [19.0; 64]);
        drop(leaving);
    });
}

#[test]
fn kernels_are_cached_on_disk() {
    software::run(|| {
        let folder = tempfile::tempdir().unwrap();
        let compiler = Compiler::new((9, 0), Some(folder.path().to_owned())).unwrap();
        let first = compiler.compile(&SOURCE).unwrap();
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files(), 1);
        assert_eq!(compiler.compile(&SOURCE).unwrap(), first);
        let other = Compiler::new((8, 0), Some(folder.path().to_owned())).unwrap();
        other.compile(&SOURCE).unwrap();
        assert_eq!(files(), 2);
    });
}

/// CI keeps the stand-ins and uses them in later checkouts, at other paths.
#[test]
fn the_stand_ins_hold_no_path_of_the_checkout() {
    let Some(folder) = software::libraries() else { return };
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let path = path.to_str().unwrap().as_bytes();
    assert!(folder.join("fibres/fibres.h").is_file());
    for entry in
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    {
        let bytes = std::fs::read(&entry).unwrap();
        assert!(!bytes.windows(path.len()).any(|window| window == path), "{}", entry.display());
    }
}

#[test]
fn a_missing_wait_before_reading_is_found() {
    software::refused("missing wait: axpy_f32 on stream 2 reads", || {
        let gpu = gpu();
        let (x, y) = (gpu.upload(&[1.0_f32; 8]).unwrap(), gpu.zeros(ElementType::F32, 8).unwrap());
        gpu.device().wait(Stream::Communication, Stream::Compute).unwrap();
        axpy(&gpu, &y, &x, Stream::Compute).unwrap();
        axpy(&gpu, &x, &y, Stream::Communication).unwrap();
    });
}

#[test]
fn a_missing_wait_before_writing_is_found() {
    software::refused("missing wait: a fill on stream 1 writes", || {
        let gpu = gpu();
        let (x, y) = (gpu.upload(&[1.0_f32; 8]).unwrap(), gpu.zeros(ElementType::F32, 8).unwrap());
        gpu.device().wait(Stream::Communication, Stream::Compute).unwrap();
        axpy(&gpu, &x, &y, Stream::Communication).unwrap();
        x.zero_on(Stream::Compute).unwrap();
    });
}

#[test]
fn memory_outlives_every_stream_that_uses_it() {
    software::run_with(&[("SOFTWARE_GPU_DELAY", "3000")], || {
        let gpu = gpu();
        for stream in [Stream::Communication, Stream::Copies] {
            // The caller waits neither for the allocation nor before the memory is freed.
            let (x, y) =
                (gpu.unwritten(ElementType::F32, 64).unwrap(), gpu.unwritten(ElementType::F32, 64).unwrap());
            x.zero_on(stream).unwrap();
            y.zero_on(stream).unwrap();
            axpy(&gpu, &x, &y, stream).unwrap();
            drop(x);
            let z = gpu.zeros(ElementType::F32, 64).unwrap();
            drop((y, z));
        }
        // Views keep the memory, too.
        let x = gpu.upload(&[1.0_f32; 64]).unwrap();
        let (view, y) = (x.view(8..16).unwrap(), gpu.zeros(ElementType::F32, 8).unwrap());
        gpu.device().wait(Stream::Communication, Stream::Compute).unwrap();
        axpy(&gpu, &view, &y, Stream::Communication).unwrap();
        drop((x, view));
        assert_eq!(y.download_on::<f32>(Stream::Communication).unwrap()[..2], [12.0, 22.0]);
        gpu.synchronize().unwrap();
    });
}

#[test]
fn a_copy_without_an_end_event_keeps_its_memory() {
    // The third event: the first two make streams wait for each other.
    software::run_with(&[("SOFTWARE_GPU_DELAY", "30000"), ("SOFTWARE_GPU_FAILS", "cuEventRecord:2")], || {
        let gpu = gpu();
        let to = gpu.zeros(ElementType::F32, 1 << 20).unwrap();
        gpu.device().wait(Stream::Copies, Stream::Compute).unwrap();
        for _ in 0..20 {
            to.zero_on(Stream::Copies).unwrap();
        }
        let error =
            Pinned::<f32>::new(gpu.device(), 1 << 20).unwrap().upload_to(&to, Stream::Copies).unwrap_err();
        assert!(
            matches!(&error, GpuError::Driver { action, .. } if action.contains("end of a copy")),
            "{error}"
        );
    });
}

#[test]
fn old_devices_and_compilers_are_refused_with_the_needed_version() {
    software::run_with(&[("SOFTWARE_GPU_CAPABILITY", "75"), ("SOFTWARE_GPU_NVRTC_NEWEST", "90")], || {
        let error = Gpu::new(0, &Options::default()).unwrap_err();
        assert!(
            matches!(error, GpuError::OldDevice { found: (7, 5), needed: (8, 0), index: 0, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("has compute capability 7.5; 8.0 (Ampere) or newer"), "{error}");
        let error = Compiler::new((10, 0), None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "NVRTC 13.0 does not compile for the GPU's sm_100, only for sm_75 to sm_90; 12.8 or newer is needed"
        );
        assert_eq!(Compiler::new((9, 0), None).unwrap().architecture(), "sm_90");
    });
}

#[test]
fn accesses_outside_of_memory_are_found() {
    software::refused("wild_f32 touched", || {
        let gpu = gpu();
        let y = gpu.zeros(ElementType::F32, 8).unwrap();
        Launch::of(&gpu, &SOURCE, "wild_f32").slice(&y).number(5000_i64).run().unwrap();
        gpu.synchronize().unwrap();
    });
}

#[test]
fn writes_just_beyond_memory_are_found() {
    software::refused("a write beyond the end", || {
        let gpu = gpu();
        let y = gpu.zeros(ElementType::F32, 8).unwrap();
        Launch::of(&gpu, &SOURCE, "wild_f32").slice(&y).number(8_i64).run().unwrap();
        drop(y);
        gpu.synchronize().unwrap();
    });
}

#[test]
fn a_library_slice_keeps_its_memory() {
    software::run(|| {
        let gpu = gpu();
        let whole = gpu.upload(&[1.0_f32, 2.0, 3.0, 4.0]).unwrap();
        let mut lent = whole.view(1..3).unwrap().for_library();
        drop(whole);
        let compute = lent.compute().clone();
        let mut bytes = lent.bytes();
        assert_eq!(bytes.len(), 8);
        compute.memset_zeros(&mut bytes.slice_mut(0..4)).unwrap();
        assert_eq!(gpu.download::<f32>(lent.slice()).unwrap(), [0.0, 3.0]);
        let slice = lent.slice().clone();
        drop(lent);
        assert_eq!(gpu.download::<f32>(&slice).unwrap(), [0.0, 3.0]);
    });
}

#[test]
fn uploaded_host_memory_may_be_overwritten_at_once() {
    software::run_with(&[("SOFTWARE_GPU_DELAY", "3000")], || {
        let gpu = gpu();
        let mut values = vec![0_u32; 5000];
        let mut uploaded = Vec::new();
        for round in 0..40_u32 {
            let len = [1, 7, 5000, 1024, 333][round as usize % 5];
            values[..len].iter_mut().enumerate().for_each(|(at, value)| *value = round * 10_000 + at as u32);
            uploaded.push((round, len, gpu.upload(&values[..len]).expect("uploads")));
        }
        values.fill(u32::MAX);
        for (round, len, slice) in uploaded {
            let expected: Vec<u32> = (0..len as u32).map(|at| round * 10_000 + at).collect();
            assert_eq!(gpu.download::<u32>(&slice).expect("downloads"), expected, "round {round}");
        }
        // More than the largest staged upload.
        let large = vec![7_u8; (64 << 20) + 1];
        let slice = gpu.upload(&large).expect("uploads");
        assert!(gpu.download::<u8>(&slice).expect("downloads") == large);
    });
}
