//! Descriptors of images, weights and convolutions.
#![allow(unsafe_code)]

use std::ffi::c_int;

use cudarc::cudnn::{result, sys};

use super::{Algorithm, Key, Plan, failed};
use crate::{ElementType, GpuError, Result, TensorLayout};

/// Defines a descriptor of the library, which is destroyed when dropped.
macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident, $type:ty, $make:path, $make_name:literal, $destroy:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name(pub(super) $type);

        impl $name {
            fn new() -> Result<Self> {
                $make().map(Self).map_err(failed($make_name))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the descriptor was made by the library, and this is its only owner.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    };
}
descriptor! {
    /// The sizes and the layout of images.
    Images, sys::cudnnTensorDescriptor_t, result::create_tensor_descriptor, "cudnnCreateTensorDescriptor",
    result::destroy_tensor_descriptor
}
descriptor! {
    /// The sizes and the layout of weights.
    Weights, sys::cudnnFilterDescriptor_t, result::create_filter_descriptor, "cudnnCreateFilterDescriptor",
    result::destroy_filter_descriptor
}
descriptor! {
    /// Padding, stride, dilation, groups and precision.
    Window, sys::cudnnConvolutionDescriptor_t, result::create_convolution_descriptor,
    "cudnnCreateConvolutionDescriptor", result::destroy_convolution_descriptor
}
fn data_type(dtype: ElementType) -> sys::cudnnDataType_t {
    match dtype {
        ElementType::F64 => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
        ElementType::Bf16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        ElementType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}

/// Converts sizes to the library's type.
fn ints<const N: usize>(sizes: [usize; N]) -> Result<[c_int; N]> {
    let mut narrow = [0; N];
    for (to, size) in narrow.iter_mut().zip(sizes) {
        let large = |_| GpuError::argument("convolution", format!("a size of {size} is too large"));
        *to = c_int::try_from(size).map_err(large)?;
    }
    Ok(narrow)
}

fn images(dtype: ElementType, layout: TensorLayout, [n, c, h, w]: [usize; 4]) -> Result<Images> {
    let strides = match layout {
        TensorLayout::ChannelsFirst => [c * h * w, h * w, w, 1],
        TensorLayout::ChannelsLast => [h * w * c, 1, w * c, c],
    };
    let (sizes, strides) = (ints([n, c, h, w])?, ints(strides)?);
    let made = Images::new()?;
    // SAFETY: the descriptor was just made.
    unsafe { result::set_tensor4d_descriptor_ex(made.0, data_type(dtype), sizes, strides) }
        .map_err(failed("cudnnSetTensor4dDescriptorEx"))?;
    Ok(made)
}
impl Plan {
    /// Returns the descriptors of a shape, with a placeholder for the algorithm.
    pub(super) fn describe(key: &Key) -> Result<Self> {
        let of = &key.convolution;
        let [height, width] = of.output().unwrap_or_default();
        let x = images(key.dtype, key.format.layout, [of.batch, of.in_channels, of.height, of.width])?;
        let y = images(key.dtype, key.format.layout, [of.batch, of.out_channels, height, width])?;
        let (w, window) = (Weights::new()?, Window::new()?);
        let algorithm =
            Algorithm::Forward(sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
        let plan = Self { x, w, y, window, algorithm, workspace: 0 };
        let format = match key.format.layout {
            TensorLayout::ChannelsFirst => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
            TensorLayout::ChannelsLast => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
        };
        let sizes = ints([of.out_channels, of.in_channels / of.groups, of.kernel[0], of.kernel[1]])?;
        let [pad_h, pad_w, step_h, step_w, between_h, between_w, groups] = ints([
            of.padding[0],
            of.padding[1],
            of.stride[0],
            of.stride[1],
            of.dilation[0],
            of.dilation[1],
            of.groups,
        ])?;
        let compute = data_type(key.dtype.wide());
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        // SAFETY: the descriptors were just made.
        unsafe {
            result::set_filter4d_descriptor(plan.w.0, data_type(key.dtype), format, sizes)
                .map_err(failed("cudnnSetFilter4dDescriptor"))?;
            result::set_convolution2d_descriptor(
                plan.window.0,
                pad_h,
                pad_w,
                step_h,
                step_w,
                between_h,
                between_w,
                mode,
                compute,
            )
            .map_err(failed("cudnnSetConvolution2dDescriptor"))?;
            result::set_convolution_group_count(plan.window.0, groups)
                .map_err(failed("cudnnSetConvolutionGroupCount"))?;
        }
        plan.set_math(math(key))?;
        Ok(plan)
    }

    pub(super) fn set_math(&self, math: sys::cudnnMathType_t) -> Result<()> {
        // SAFETY: the descriptor is alive.
        unsafe { result::set_convolution_math_type(self.window.0, math) }
            .map_err(failed("cudnnSetConvolutionMathType"))
    }
}

/// Returns the math type, which limits rounding.
fn math(key: &Key) -> sys::cudnnMathType_t {
    match key.dtype {
        ElementType::F32 if !key.format.tf32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        ElementType::F64 => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
        _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
    }
}
