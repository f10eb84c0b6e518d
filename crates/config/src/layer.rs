//! Layers: the files and options that a configuration is composed of.

use std::path::{Path, PathBuf};

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::origin::{ConfigError, Origin};
use super::suggest::nearest;

/// One assignment `section.key = value` and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) origin: Origin,
    /// The text of an option's value, which may be a string without its quotes.
    pub(super) raw: Option<String>,
    /// The number of files below it; options are above all files.
    pub(super) layer: usize,
}

/// The layer of options.
const OPTIONS: usize = usize::MAX;

impl Assignment {
    /// An assignment that an option stands for; `option` is how the user wrote it.
    pub(super) fn of_option(option: &str, key: &str, value: Value) -> Self {
        let origin = Origin::Option(option.to_owned());
        Self { key: key.to_owned(), value, origin, raw: None, layer: OPTIONS }
    }

    /// True for an option of the command line.
    pub(super) fn is_option(&self) -> bool {
        self.layer == OPTIONS
    }
}

/// The presets of a program, as layers see them.
pub(super) struct Presets<'a> {
    /// The program's name.
    pub(super) program: &'a str,
    /// Names and texts.
    pub(super) texts: &'a [(String, String)],
}

/// A parsed preset or file.
#[derive(Debug)]
struct Layer {
    assignments: Vec<Assignment>,
    extends: Option<(String, Origin)>,
    description: Option<String>,
}

/// A name that a user gave for a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Preset(String),
    File(PathBuf),
}

impl Source {
    /// Resolves `name` as written in the folder `base`: a file if it ends in `.toml`, else a preset.
    fn new(name: &str, base: &Path) -> Self {
        if name.ends_with(".toml") { Self::File(base.join(name)) } else { Self::Preset(name.to_owned()) }
    }

    fn display(&self) -> String {
        match self {
            Self::Preset(name) => format!("presets/{name}.toml"),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Two spellings of one file compare equal, so that a circle is found at its first turn.
    fn identity(&self) -> Self {
        match self {
            Self::Preset(_) => self.clone(),
            Self::File(path) => Self::File(path.canonicalize().unwrap_or_else(|_| path.clone())),
        }
    }

    fn text(&self, presets: &Presets<'_>, origin: &Origin) -> Result<String, ConfigError> {
        match self {
            Self::Preset(name) => {
                let text =
                    presets.texts.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone());
                text.ok_or_else(|| ConfigError::NoSuchPreset {
                    origin: origin.clone(),
                    name: name.clone(),
                    suggestion: nearest(name, presets.texts.iter().map(|(known, _)| known.as_str())),
                    program: presets.program.to_owned(),
                })
            }
            Self::File(path) => std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
                origin: origin.clone(),
                path: path.clone(),
                source,
            }),
        }
    }
}

/// The assignments of `name` and of everything it extends, the base first, and its one-line description.
pub(super) fn load(
    presets: &Presets<'_>,
    name: &str,
) -> Result<(Vec<Assignment>, Option<String>), ConfigError> {
    let mut layers = Vec::new();
    let mut chain: Vec<Source> = Vec::new();
    let mut next = Some((Source::new(name, Path::new("")), Origin::Default));
    while let Some((source, origin)) = next {
        let identity = source.identity();
        let seen = chain.iter().position(|known| known.identity() == identity);
        chain.push(source.clone());
        if let Some(start) = seen {
            let chain = chain[start..].iter().map(Source::display).collect();
            return Err(ConfigError::Cycle { origin, chain });
        }
        let layer = parse(&source.display(), &source.text(presets, &origin)?)?;
        let folder = match &source {
            Source::Preset(_) => PathBuf::new(),
            Source::File(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
        };
        next = layer.extends.clone().map(|(name, origin)| (Source::new(&name, &folder), origin));
        layers.push(layer);
    }
    let description = layers.first().and_then(|layer| layer.description.clone());
    let placed = layers.into_iter().rev().enumerate().flat_map(|(at, layer)| {
        layer.assignments.into_iter().map(move |assignment| Assignment { layer: at, ..assignment })
    });
    Ok((placed.collect(), description))
}

/// Parses one file into assignments.
fn parse(file: &str, text: &str) -> Result<Layer, ConfigError> {
    let at = |offset: usize| Origin::Line {
        file: file.to_owned(),
        line: 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count(),
    };
    let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        origin: at(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let mut layer = Layer { assignments: Vec::new(), extends: None, description: None };
    let mut problems = Vec::new();
    collect(table.get_ref(), "", &mut |key, offset, span| {
        let origin = at(offset);
        let value = match text[span].parse::<Value>() {
            Ok(value) => value,
            Err(error) => {
                return problems.push(ConfigError::Syntax { origin, message: error.message().to_owned() });
            }
        };
        match (key.as_str(), value.as_str()) {
            ("extends", Some(name)) => layer.extends = Some((name.to_owned(), origin)),
            ("description", Some(text)) => layer.description = Some(text.to_owned()),
            ("extends" | "description", None) => {
                let mismatch = Box::new(super::section::Mismatch::new("a string", &value));
                problems.push(ConfigError::WrongType { origin, key, mismatch });
            }
            _ => layer.assignments.push(Assignment { key, value, origin, raw: None, layer: 0 }),
        }
    });
    ConfigError::from_all(problems)?;
    Ok(layer)
}

/// Calls `leaf` with every key that holds something else than a table: its path, where it begins, and its
/// value's place.
fn collect(table: &DeTable<'_>, prefix: &str, leaf: &mut impl FnMut(String, usize, std::ops::Range<usize>)) {
    for (key, value) in table {
        let path =
            if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => collect(inner, &path, leaf),
            // An empty section says nothing.
            DeValue::Table(_) if prefix.is_empty() => {}
            _ => leaf(path, key.span().start, value.span()),
        }
    }
}

/// Parses the `section.key=value` of an option; `option` is how the user wrote the whole.
pub(super) fn parse_option(option: &str, text: &str) -> Result<Assignment, ConfigError> {
    let wrong = || ConfigError::NotAnAssignment { option: option.to_owned() };
    let (key, raw) = text.split_once('=').ok_or_else(wrong)?;
    let (key, raw) = (key.trim(), raw.trim());
    if key.is_empty() {
        return Err(wrong());
    }
    // On a command line quotes are a burden: what is no TOML value is a string.
    let value = raw.parse::<Value>().unwrap_or_else(|_| Value::String(raw.to_owned()));
    Ok(Assignment {
        key: key.to_owned(),
        value,
        origin: Origin::Option(option.to_owned()),
        raw: Some(raw.to_owned()),
        layer: OPTIONS,
    })
}
