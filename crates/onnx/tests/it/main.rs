//! The tests of `phalanx-onnx`: models are parsed back by the field numbers of `onnx.proto`.

mod reader;
mod structure;
