//! A reader of ONNX files: the fields of Protocol Buffers, and the parts of a model that tests look at.

use std::collections::BTreeMap;

/// The fields of a message by number: integers, and the bytes of other types.
type Fields = BTreeMap<u64, Vec<Field>>;

#[derive(Debug, Clone)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Field {
    fn number(&self) -> i64 {
        if let Self::Number(number) = self { number.cast_signed() } else { panic!("an integer: {self:?}") }
    }

    fn bytes(&self) -> &[u8] {
        if let Self::Bytes(bytes) = self { bytes } else { panic!("bytes: {self:?}") }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).expect("UTF-8")
    }

    fn fields(&self) -> Fields {
        fields(self.bytes())
    }
}

fn fields(mut bytes: &[u8]) -> Fields {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = bytes.split_first().expect("a whole varint");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut all = Fields::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            kind => {
                let length = match kind {
                    1 => 8,
                    2 => varint(&mut bytes) as usize,
                    5 => 4,
                    _ => panic!("field kind {kind}"),
                };
                let (own, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(own.to_vec())
            }
        };
        all.entry(key >> 3).or_default().push(field);
    }
    all
}

fn one(fields: &Fields, number: u64) -> &Field {
    &fields[&number][0]
}

fn all(fields: &Fields, number: u64) -> &[Field] {
    fields.get(&number).map_or(&[], Vec::as_slice)
}

/// A node as written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReadNode {
    pub(crate) operator: String,
    pub(crate) inputs: Vec<String>,
    pub(crate) output: String,
    /// Integers of an attribute, or the bits of its number, or its text's bytes.
    pub(crate) attributes: BTreeMap<String, Vec<i64>>,
}

/// An initializer as written: sizes, and f32 or i64 elements.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReadConstant {
    pub(crate) dims: Vec<i64>,
    pub(crate) floats: Vec<f32>,
    pub(crate) integers: Vec<i64>,
}

/// A model as written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReadModel {
    pub(crate) opset: i64,
    pub(crate) nodes: Vec<ReadNode>,
    pub(crate) constants: BTreeMap<String, ReadConstant>,
    /// Name and sizes of each input, then of each output; an open size by its name.
    pub(crate) ports: Vec<(String, Vec<String>)>,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// Reads a `ModelProto`.
pub(crate) fn read(bytes: &[u8]) -> ReadModel {
    let model = fields(bytes);
    assert_eq!(one(&model, 1).number(), 8, "ir_version");
    let graph = one(&model, 7).fields();
    let metadata = all(&model, 14).iter().map(|entry| {
        let entry = entry.fields();
        (one(&entry, 1).text(), one(&entry, 2).text())
    });
    ReadModel {
        opset: one(&one(&model, 8).fields(), 2).number(),
        nodes: all(&graph, 1).iter().map(node).collect(),
        constants: all(&graph, 5).iter().map(constant).collect(),
        ports: all(&graph, 11).iter().chain(all(&graph, 12)).map(port).collect(),
        metadata: metadata.collect(),
    }
}

fn node(field: &Field) -> ReadNode {
    let node = field.fields();
    let attribute = |field: &Field| {
        let attribute = field.fields();
        let values = match one(&attribute, 20).number() {
            1 => vec![i64::from(u32::from_le_bytes(one(&attribute, 2).bytes().try_into().expect("a float")))],
            2 => vec![one(&attribute, 3).number()],
            3 => one(&attribute, 4).bytes().iter().map(|byte| i64::from(*byte)).collect(),
            7 => all(&attribute, 8).iter().map(Field::number).collect(),
            other => panic!("attribute type {other}"),
        };
        (one(&attribute, 1).text(), values)
    };
    ReadNode {
        operator: one(&node, 4).text(),
        inputs: all(&node, 1).iter().map(Field::text).collect(),
        output: one(&node, 2).text(),
        attributes: all(&node, 5).iter().map(attribute).collect(),
    }
}

fn constant(field: &Field) -> (String, ReadConstant) {
    let tensor = field.fields();
    let raw = all(&tensor, 9).first().map_or(&[][..], Field::bytes);
    let is_float = one(&tensor, 2).number() == 1;
    let floats = raw.chunks_exact(4).filter(|_| is_float);
    let integers = raw.chunks_exact(8).filter(|_| !is_float);
    let constant = ReadConstant {
        dims: all(&tensor, 1).iter().map(Field::number).collect(),
        floats: floats.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect(),
        integers: integers.map(|bytes| i64::from_le_bytes(bytes.try_into().expect("eight"))).collect(),
    };
    (one(&tensor, 8).text(), constant)
}

fn port(field: &Field) -> (String, Vec<String>) {
    let port = field.fields();
    let tensor = one(&one(&port, 2).fields(), 1).fields();
    assert_eq!(one(&tensor, 1).number(), 1, "f32");
    let dim = |field: &Field| {
        let dim = field.fields();
        let fixed = all(&dim, 1).first().map(|size| size.number().to_string());
        fixed.unwrap_or_else(|| one(&dim, 2).text())
    };
    (one(&port, 1).text(), all(&one(&tensor, 2).fields(), 1).iter().map(dim).collect())
}
