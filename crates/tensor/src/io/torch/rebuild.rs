//! Tensors of a pickle: the calls of `torch._utils` that rebuild them.

use candle_core::DType;

use super::objects::{Id, Object, Objects};

/// An element type of PyTorch's storages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ElementType {
    /// PyTorch's name, as `float32`.
    pub(super) name: &'static str,
    pub(super) bytes: usize,
    /// Its type here, if it is read.
    pub(super) read_as: Option<DType>,
}

/// Storage classes, the names of their element types, bytes, and types here.
const ELEMENT_TYPES: &[(&str, ElementType)] = &[
    ("FloatStorage", ElementType { name: "float32", bytes: 4, read_as: Some(DType::F32) }),
    ("DoubleStorage", ElementType { name: "float64", bytes: 8, read_as: Some(DType::F64) }),
    ("HalfStorage", ElementType { name: "float16", bytes: 2, read_as: Some(DType::F16) }),
    ("BFloat16Storage", ElementType { name: "bfloat16", bytes: 2, read_as: Some(DType::BF16) }),
    ("LongStorage", ElementType { name: "int64", bytes: 8, read_as: Some(DType::I64) }),
    ("ByteStorage", ElementType { name: "uint8", bytes: 1, read_as: Some(DType::U8) }),
    ("", ElementType { name: "uint32", bytes: 4, read_as: Some(DType::U32) }),
    ("IntStorage", ElementType { name: "int32", bytes: 4, read_as: None }),
    ("ShortStorage", ElementType { name: "int16", bytes: 2, read_as: None }),
    ("CharStorage", ElementType { name: "int8", bytes: 1, read_as: None }),
    ("BoolStorage", ElementType { name: "bool", bytes: 1, read_as: None }),
    ("ComplexFloatStorage", ElementType { name: "complex64", bytes: 8, read_as: None }),
    ("ComplexDoubleStorage", ElementType { name: "complex128", bytes: 16, read_as: None }),
    ("QInt8Storage", ElementType { name: "qint8", bytes: 1, read_as: None }),
    ("QUInt8Storage", ElementType { name: "quint8", bytes: 1, read_as: None }),
    ("QInt32Storage", ElementType { name: "qint32", bytes: 4, read_as: None }),
    ("", ElementType { name: "uint16", bytes: 2, read_as: None }),
    ("", ElementType { name: "uint64", bytes: 8, read_as: None }),
    ("", ElementType { name: "float8_e4m3fn", bytes: 1, read_as: None }),
    ("", ElementType { name: "float8_e5m2", bytes: 1, read_as: None }),
    ("", ElementType { name: "float8_e4m3fnuz", bytes: 1, read_as: None }),
    ("", ElementType { name: "float8_e5m2fnuz", bytes: 1, read_as: None }),
    ("", ElementType { name: "float8_e8m0fnu", bytes: 1, read_as: None }),
    ("UntypedStorage", ElementType { name: "bytes", bytes: 1, read_as: None }),
];

/// A storage that a pickle refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StorageRef {
    pub(super) key: String,
    pub(super) element: ElementType,
    /// Its number of elements.
    pub(super) elements: u64,
    /// The first element of a view of it, in old files.
    pub(super) start: u64,
}

/// A tensor of a pickle: elements of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TorchTensor {
    pub(super) storage: StorageRef,
    pub(super) element: ElementType,
    pub(super) offset: u64,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// A tensor, or the reason why it cannot be read.
pub(super) type Rebuilt = Result<TorchTensor, String>;

/// The largest number of calls around that of a tensor.
const CALLS: usize = 8;

/// The tensor of an object; `None` for objects that are no tensors.
pub(super) fn tensor(objects: &Objects, mut id: Id) -> Option<Rebuilt> {
    for _ in 0..CALLS {
        let Object::Call { callable, arguments, .. } = objects.get(id) else { return None };
        let class = objects.class(*callable)?;
        let parts = objects.tuple(*arguments)?;
        match (class.module.as_str(), class.name.as_str()) {
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                id = *parts.first()?;
            }
            ("torch._tensor", "_rebuild_from_type_v2") => {
                let (function, inner) = (parts.first()?, objects.tuple(*parts.get(2)?)?);
                return rebuilt(objects, &objects.class(*function)?.name, inner);
            }
            ("torch._utils", name) => return rebuilt(objects, name, parts),
            _ => return None,
        }
    }
    None
}

/// The tensor of a call of `name` in `torch._utils`.
fn rebuilt(objects: &Objects, name: &str, parts: &[Id]) -> Option<Rebuilt> {
    match name {
        "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3" => {
            Some(strided(objects, parts).unwrap_or_else(|| Err("is damaged in the pickle".to_owned())))
        }
        other => {
            let kind = other.strip_prefix("_rebuild_")?;
            Some(Err(format!("is of a kind that is not read ({kind}); save it as a dense tensor")))
        }
    }
}

/// The tensor of (storage, offset, shape, strides, …); in version 3 the seventh part is the element type.
fn strided(objects: &Objects, parts: &[Id]) -> Option<Rebuilt> {
    let &[storage, offset, shape, strides, ..] = parts else { return None };
    let storage = match storage_of(objects, storage)? {
        Ok(storage) => storage,
        Err(problem) => return Some(Err(problem)),
    };
    let numbers = |id| -> Option<Vec<usize>> {
        let parts = objects.tuple(id)?.iter();
        parts.map(|part| objects.int(*part).and_then(|value| usize::try_from(value).ok())).collect()
    };
    let (shape, strides) = (numbers(shape)?, numbers(strides)?);
    if shape.len() != strides.len() {
        return None;
    }
    let dtype = parts.get(6).and_then(|id| objects.class(*id)).filter(|class| class.module == "torch");
    let element = match dtype {
        None => storage.element,
        Some(class) => match ELEMENT_TYPES.iter().find(|(_, element)| element.name == class.name) {
            Some((_, element)) => *element,
            None => return Some(Err(format!("has element type {}, which is not read", class.name))),
        },
    };
    let offset = u64::try_from(objects.int(offset)?).ok()?;
    Some(Ok(TorchTensor { storage, element, offset, shape, strides }))
}

/// The storage of a persistent object: ("storage", class, key, place, elements, view).
pub(super) fn storage_of(objects: &Objects, id: Id) -> Option<Result<StorageRef, String>> {
    let Object::Persistent(id) = objects.get(id) else { return None };
    storage(objects, *id)
}

fn storage(objects: &Objects, id: Id) -> Option<Result<StorageRef, String>> {
    let parts = objects.tuple(id)?;
    let &[kind, class, key, _, elements, ..] = parts else { return None };
    if objects.text(kind) != Some("storage") {
        return None;
    }
    let class = &objects.class(class)?.name;
    let Some((_, element)) = ELEMENT_TYPES.iter().find(|(known, _)| known == class && !known.is_empty())
    else {
        return Some(Err(format!("has a storage of class {class}, which is not read")));
    };
    let start = match parts.get(5).and_then(|view| objects.tuple(*view)) {
        Some([_, start, _]) => u64::try_from(objects.int(*start)?).ok()?,
        _ => 0,
    };
    let elements = u64::try_from(objects.int(elements)?).ok()?;
    Some(Ok(StorageRef { key: objects.text(key)?.to_owned(), element: *element, elements, start }))
}

/// All storages that a pickle refers to.
pub(super) fn storages(objects: &Objects) -> impl Iterator<Item = StorageRef> {
    objects.iter().filter_map(|object| match object {
        Object::Persistent(id) => storage(objects, *id)?.ok(),
        _ => None,
    })
}
