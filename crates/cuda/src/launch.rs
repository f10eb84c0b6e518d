//! Kernel launches by name.
//!
//! ```no_run
//! use phalanx_cuda::{Gpu, Options, Source, launch::Launch};
//!
//! const SOURCE: Source = Source {
//!     name: "double",
//!     parts: &["extern \"C\" __global__ void double_f32(const float *x, float *y, unsigned n) {
//!         unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
//!         if (i < n) y[i] = 2 * x[i];
//!     }"],
//! };
//! let gpu = Gpu::new(0, &Options::default())?;
//! let x = gpu.upload(&[1.0_f32, 2.0, 3.0])?;
//! let y = gpu.unwritten(x.dtype(), x.len())?;
//! Launch::of(&gpu, &SOURCE, "double_f32").over(x.len(), 256).slice(&x).slice(&y).number(x.len() as u32).run()?;
//! assert_eq!(gpu.download::<f32>(&y)?, [2.0, 4.0, 6.0]);
//! # Ok::<(), phalanx_cuda::GpuError>(())
//! ```

use cudarc::driver::CudaStream;

use crate::Result;
use crate::compile::Source;
use crate::device::{Stream, Work};
use crate::driver::{Call, Shape};
use crate::gpu::Gpu;
use crate::memory::{Slice, issue, issue_repeatable};

/// A scalar, or an array of scalars, that a kernel takes by value. An array is a `struct` with one array in CUDA C.
pub trait Number: bytemuck::Pod {}

macro_rules! number {
    ($($type:ty),*) => {
        $(impl Number for $type {}
        impl<const N: usize> Number for [$type; N] where Self: bytemuck::Pod {})*
    };
}
number!(i32, u32, i64, u64, f32, f64);

/// A kernel with its grid, stream and arguments. Arguments are given in the order of the kernel's parameters.
#[derive(Debug)]
#[must_use = "a launch runs when `run` is called"]
pub struct Launch<'a> {
    gpu: &'a Gpu,
    source: &'a Source,
    kernel: &'a str,
    shape: Shape,
    stream: Stream,
    /// The arguments. Each begins at its own word.
    words: Vec<u64>,
    /// The first word and the bytes of each argument.
    places: Vec<(usize, usize)>,
    slices: Vec<&'a Slice>,
}

impl<'a> Launch<'a> {
    /// Returns a launch of a kernel on the compute stream, with one block of one thread.
    pub fn of(gpu: &'a Gpu, source: &'a Source, kernel: &'a str) -> Self {
        Self {
            gpu,
            source,
            kernel,
            shape: Shape { grid: [1; 3], block: [1; 3], shared: 0 },
            stream: Stream::Compute,
            words: Vec::with_capacity(16),
            places: Vec::with_capacity(16),
            slices: Vec::with_capacity(8),
        }
    }

    /// Sets the grid: `grid` blocks of `block` threads each.
    pub fn blocks(mut self, grid: [usize; 3], block: [usize; 3]) -> Self {
        // A size above u32 becomes u32::MAX, which the driver rejects.
        let narrow = |sizes: [usize; 3]| sizes.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        (self.shape.grid, self.shape.block) = (narrow(grid), narrow(block));
        self
    }

    /// Sets the grid to the blocks of `block` threads that cover `count` threads along x.
    pub fn over(self, count: usize, block: usize) -> Self {
        self.blocks([count.div_ceil(block), 1, 1], [block, 1, 1])
    }

    /// Adds dynamic shared memory, in bytes per block.
    pub fn shared(mut self, bytes: usize) -> Self {
        self.shape.shared = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }

    /// Sets the stream. It waits for the allocation of each slice, and the memory is not freed before the stream is done. Call
    /// [`Device::wait`](crate::Device::wait) before this stream reads the results of another one.
    pub fn on(mut self, stream: Stream) -> Self {
        self.stream = stream;
        self
    }

    fn push(&mut self, bytes: &[u8]) {
        self.places.push((self.words.len(), bytes.len()));
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.words.push(u64::from_ne_bytes(word));
        }
    }

    /// Adds an argument: a pointer to the first element.
    pub fn slice(mut self, slice: &'a Slice) -> Self {
        self.slices.push(slice);
        self.push(bytemuck::bytes_of(&slice.address()));
        self
    }

    /// Adds an argument: a pointer to the first element, or a null pointer.
    pub fn optional(mut self, slice: Option<&'a Slice>) -> Self {
        match slice {
            Some(slice) => self.slice(slice),
            None => {
                self.push(&[0; 8]);
                self
            }
        }
    }

    /// Adds an argument: a scalar or an array by value.
    pub fn number(mut self, number: impl Number) -> Self {
        self.push(bytemuck::bytes_of(&number));
        self
    }

    /// Issues the kernel and returns. A grid without blocks runs nothing.
    ///
    /// # Errors
    /// If the kernel does not exist or does not compile, its parameters have other sizes than the arguments, a slice belongs to
    /// another GPU, or the driver rejects the grid; [`GpuError::Capture`](crate::GpuError::Capture) if it is the kernel's first
    /// launch and a graph is captured.
    pub fn run(self) -> Result<()> {
        if self.shape.grid.contains(&0) {
            return Ok(());
        }
        let (device, module) = (self.gpu.device(), self.gpu.module(self.source)?);
        if device.scope().is_some() && !module.has_run(self.kernel) {
            device.first_use(&format!("the kernel `{}`", self.kernel))?;
        }
        let Self { kernel, shape, ref slices, .. } = self;
        let call = Call { module: &module, kernel, shape, arguments: &self.words, places: &self.places };
        let launch = |stream: &CudaStream| call.launch(stream);
        match self.stream {
            Stream::Compute => issue_repeatable(device, kernel, slices, &Work::Kernel(call), launch),
            stream => issue(device, stream, kernel, slices, launch),
        }
    }
}
