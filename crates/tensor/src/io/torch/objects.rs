//! The objects of a pickle.
//!
//! Objects refer to each other by position in one list. So memory grows by a small amount for each instruction,
//! however often an object is referenced, and dropping them does not recurse.

/// The position of an object in [`Objects`].
pub(super) type Id = u32;

/// An object, as far as a state dict needs it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Object {
    None,
    Bool(bool),
    Int(i64),
    Float,
    Text(Box<str>),
    Bytes,
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Class(Box<ClassName>),
    /// A call: an instance of a class, or the result of a function.
    Call {
        callable: Id,
        arguments: Id,
        state: Option<Id>,
    },
    /// A reference to data outside of the pickle.
    Persistent(Id),
}

/// The name of a class or function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClassName {
    pub(super) module: String,
    pub(super) name: String,
}

impl ClassName {
    fn is_dict(&self) -> bool {
        matches!(
            (self.module.as_str(), self.name.as_str()),
            ("collections", "OrderedDict" | "defaultdict")
                | ("builtins" | "__builtin__", "dict")
                | ("torch.utils.hooks" | "torch.jit._pickle", "OrderedDict")
        )
    }
}

/// All objects of a pickle.
#[derive(Debug, Default)]
pub(super) struct Objects {
    all: Vec<Object>,
}

impl Objects {
    pub(super) fn add(&mut self, object: Object) -> Id {
        self.all.push(object);
        (self.all.len() - 1) as Id
    }

    pub(super) fn get(&self, id: Id) -> &Object {
        self.all.get(id as usize).unwrap_or(&Object::None)
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Object> {
        self.all.get_mut(id as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.all.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Object::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn int(&self, id: Id) -> Option<i64> {
        match self.get(id) {
            Object::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn tuple(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Object::Tuple(parts) => Some(parts),
            _ => None,
        }
    }

    pub(super) fn class(&self, id: Id) -> Option<&ClassName> {
        match self.get(id) {
            Object::Class(class) => Some(class),
            _ => None,
        }
    }

    /// The entries of a dict, or of an object's attributes.
    pub(super) fn entries(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.get(id) {
            Object::Dict(entries) => Some(entries),
            Object::Call { state: Some(state), .. } => match self.get(*state) {
                Object::Dict(entries) => Some(entries),
                _ => None,
            },
            _ => None,
        }
    }

    /// The object of a call: a dict for dict classes, given its pairs in old files.
    pub(super) fn call(&self, callable: Id, arguments: Id) -> Object {
        let is_dict = self.class(callable).is_some_and(ClassName::is_dict);
        if !is_dict {
            return Object::Call { callable, arguments, state: None };
        }
        let mut entries = Vec::new();
        // Python 2 gives a list of lists of two.
        if let Some(Object::List(pairs)) =
            self.tuple(arguments).and_then(|all| all.first()).map(|id| self.get(*id))
        {
            for pair in pairs {
                if let Object::List(parts) | Object::Tuple(parts) = self.get(*pair)
                    && let [key, value] = parts[..]
                {
                    entries.push((key, value));
                }
            }
        }
        Object::Dict(entries)
    }

    /// Describes an object in a few words.
    pub(super) fn describe(&self, id: Id) -> String {
        match self.get(id) {
            Object::None => "None".to_owned(),
            Object::Bool(value) => (if *value { "True" } else { "False" }).to_owned(),
            Object::Int(value) => value.to_string(),
            Object::Float => "a float".to_owned(),
            Object::Text(_) | Object::Bytes => "a string".to_owned(),
            Object::Tuple(parts) | Object::List(parts) => format!("a list of {}", parts.len()),
            Object::Dict(entries) => format!("a dict of {}", entries.len()),
            Object::Class(class) => format!("the class {}.{}", class.module, class.name),
            Object::Call { callable, .. } => match self.class(*callable) {
                Some(class) if class.name.starts_with("_rebuild_") => "a tensor".to_owned(),
                Some(class) => format!("an object of {}.{}", class.module, class.name),
                None => "an object".to_owned(),
            },
            Object::Persistent(_) => "a storage".to_owned(),
        }
    }
}
