//! The encoding of a model as Protocol Buffers, by the field numbers of `onnx.proto`.

use phalanx_run::Message;

use crate::dims::Dim;
use crate::node::{Attribute, Constant, Node, Values};

/// The version of the format that opset 17 belongs to.
const IR_VERSION: u64 = 8;

/// The version of the standard operators.
pub(crate) const OPSET: u64 = 17;

/// The element types of `TensorProto`.
const FLOAT: u64 = 1;
const INT64: u64 = 7;

/// An input or an output of a model, f32.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) dims: Vec<Dim>,
}

/// The parts of a model.
pub(crate) struct Parts<'a> {
    pub(crate) name: &'a str,
    pub(crate) nodes: &'a [Node],
    pub(crate) constants: &'a [Constant],
    pub(crate) inputs: &'a [Port],
    pub(crate) outputs: &'a [Port],
    pub(crate) metadata: &'a [(String, String)],
}

/// Encodes a `ModelProto`.
pub(crate) fn model(parts: &Parts<'_>) -> Vec<u8> {
    let opset = Message::new().bytes(1, b"").varint(2, OPSET);
    let mut message = Message::new()
        .varint(1, IR_VERSION)
        .bytes(2, b"phalanx")
        .bytes(3, env!("CARGO_PKG_VERSION").as_bytes())
        .message(7, &graph(parts))
        .message(8, &opset);
    for (key, value) in parts.metadata {
        let entry = Message::new().bytes(1, key.as_bytes()).bytes(2, value.as_bytes());
        message = message.message(14, &entry);
    }
    message.into_bytes()
}

fn graph(parts: &Parts<'_>) -> Message {
    let mut message = Message::new();
    for item in parts.nodes {
        message = message.message(1, &node(item));
    }
    message = message.bytes(2, parts.name.as_bytes());
    for item in parts.constants {
        message = message.message(5, &constant(item));
    }
    for item in parts.inputs {
        message = message.message(11, &port(item));
    }
    for item in parts.outputs {
        message = message.message(12, &port(item));
    }
    message
}

fn node(node: &Node) -> Message {
    let mut message = Message::new();
    for input in &node.inputs {
        message = message.bytes(1, input.as_bytes());
    }
    message = message
        .bytes(2, node.output.as_bytes())
        .bytes(3, node.output.as_bytes())
        .bytes(4, node.operator.as_bytes());
    for (name, value) in &node.attributes {
        message = message.message(5, &attribute(name, value));
    }
    message
}

fn attribute(name: &str, value: &Attribute) -> Message {
    let message = Message::new().bytes(1, name.as_bytes());
    match value {
        Attribute::Float(number) => message.float(2, *number).varint(20, 1),
        Attribute::Int(number) => message.varint(3, number.cast_unsigned()).varint(20, 2),
        Attribute::Text(text) => message.bytes(4, text.as_bytes()).varint(20, 3),
        Attribute::Ints(numbers) => {
            let add = |message: Message, number: &i64| message.varint(8, number.cast_unsigned());
            numbers.iter().fold(message, add).varint(20, 7)
        }
    }
}

fn constant(constant: &Constant) -> Message {
    let mut message = Message::new();
    for size in &constant.dims {
        message = message.varint(1, *size as u64);
    }
    let (element_type, bytes): (u64, Vec<u8>) = match &constant.values {
        Values::F32(values) => (FLOAT, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        Values::I64(values) => (INT64, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
    };
    message.varint(2, element_type).bytes(8, constant.name.as_bytes()).bytes(9, &bytes)
}

/// Encodes a `ValueInfoProto`.
fn port(port: &Port) -> Message {
    let mut shape = Message::new();
    for dim in &port.dims {
        let dim = match dim {
            Dim::Fixed(size) => Message::new().varint(1, *size as u64),
            Dim::Batch(1) => Message::new().bytes(2, b"batch"),
            Dim::Batch(multiple) => Message::new().bytes(2, format!("{multiple}*batch").as_bytes()),
        };
        shape = shape.message(1, &dim);
    }
    let tensor = Message::new().varint(1, FLOAT).message(2, &shape);
    Message::new().bytes(1, port.name.as_bytes()).message(2, &Message::new().message(1, &tensor))
}
