//! Models of Python libraries that load the same weights.

/// The model of a Python library with the parameter names and the arithmetic of a trained one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceModel {
    /// The name by which timm makes the model, if timm has exactly it.
    pub timm: Option<String>,
    /// Lines of Python that make the model as `model`, imports first.
    pub python: Vec<String>,
}

impl ReferenceModel {
    /// Describes a model that these lines of Python make, and that timm lacks.
    pub fn of_python(lines: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { timm: None, python: lines.into_iter().map(Into::into).collect() }
    }

    /// Names the model in timm.
    #[must_use]
    pub fn in_timm(self, name: impl Into<String>) -> Self {
        Self { timm: Some(name.into()), ..self }
    }
}
