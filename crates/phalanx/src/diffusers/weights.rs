//! Weights of a part, from one file or several, tensor by tensor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use phalanx_tensor::ParamStore;
use phalanx_tensor::io::TensorFile;

use super::DiffusersError;
use super::json::Json;

/// The files of a part's weights.
#[derive(Debug)]
pub(super) struct Weights {
    folder: PathBuf,
    files: Vec<TensorFile>,
    /// By name: which file has it.
    places: BTreeMap<String, usize>,
}

impl Weights {
    /// Opens the weights called `stem` in a folder: `STEM.safetensors`, `STEM.fp16.safetensors`, or several with
    /// `STEM.safetensors.index.json`.
    pub(super) fn open(folder: &Path, stem: &str) -> Result<Self, DiffusersError> {
        let single = [format!("{stem}.safetensors"), format!("{stem}.fp16.safetensors")];
        let index = folder.join(format!("{stem}.safetensors.index.json"));
        let mut paths: Vec<PathBuf> =
            single.iter().map(|name| folder.join(name)).filter(|path| path.is_file()).take(1).collect();
        if paths.is_empty() && index.is_file() {
            let json = Json::read(&index)?;
            let map = json.get("weight_map").and_then(serde_json::Value::as_object);
            let map = map.ok_or_else(|| DiffusersError::unfit(&index, "it has no `weight_map`"))?;
            let mut names: Vec<&str> = map.values().filter_map(serde_json::Value::as_str).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let path = folder.join(name);
                if !path.is_file() {
                    let wanted = format!("{name}, which {} names", index.display());
                    return Err(DiffusersError::Missing { folder: folder.to_owned(), wanted });
                }
                paths.push(path);
            }
        }
        if paths.is_empty() {
            let wanted = format!("{} (or {}, or an index of several files)", single[0], single[1]);
            return Err(DiffusersError::Missing { folder: folder.to_owned(), wanted });
        }
        let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let of_file = |(at, file): (usize, &TensorFile)| -> Vec<(String, usize)> {
            file.tensors().map(|header| (header.name.clone(), at)).collect()
        };
        let places = files.iter().enumerate().flat_map(of_file).collect();
        Ok(Self { folder: folder.to_owned(), files, places })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Returns the number of elements.
    pub(super) fn elements(&self) -> usize {
        let of_file = |file: &TensorFile| -> usize {
            file.tensors().map(|header| header.shape.iter().product::<usize>()).sum()
        };
        self.files.iter().map(of_file).sum()
    }

    pub(super) fn wrong(&self, problem: String) -> DiffusersError {
        DiffusersError::unfit(&self.folder, problem)
    }

    /// The tensor of a name.
    fn read(&self, name: &str) -> Result<Tensor, DiffusersError> {
        let place = self.places.get(name).ok_or_else(|| self.wrong(format!("the weights lack `{name}`")))?;
        let file = &self.files[*place];
        let shape = file.get(name).map(|header| header.shape.clone()).unwrap_or_default();
        Ok(file.read(name, 0..shape.iter().product())?.reshape(shape)?)
    }

    /// All tensors, by name.
    pub(super) fn all(&self) -> Result<Vec<(String, Tensor)>, DiffusersError> {
        self.names().map(|name| Ok((name.to_owned(), self.read(name)?))).collect()
    }

    /// Fills a store, with one further tensor in memory at a time; `called` returns a parameter's name in the files.
    pub(super) fn fill(
        &self,
        store: &ParamStore,
        called: impl Fn(&str) -> Vec<String>,
    ) -> Result<(), DiffusersError> {
        let mut used = std::collections::BTreeSet::new();
        for param in store.params() {
            let names = called(param.name());
            let Some(name) = names.iter().find(|name| self.places.contains_key(*name)) else {
                return Err(self.wrong(format!("the weights lack `{}`", param.name())));
            };
            let mut tensor = self.read(name)?;
            // Old files have the projections of attention as 1×1 convolutions.
            if let (&[rows, columns, 1, 1], [_, _]) = (tensor.dims(), param.dims()) {
                tensor = tensor.reshape((rows, columns))?;
            }
            if tensor.dims() != param.dims() {
                let problem =
                    format!("`{name}` is {:?}; the configuration asks for {:?}", tensor.dims(), param.dims());
                return Err(self.wrong(problem));
            }
            param.set(&tensor)?;
            used.insert(name.clone());
        }
        match self.names().find(|name| !used.contains(*name)) {
            Some(strange) => {
                Err(self.wrong(format!("the weights have `{strange}`, which the configuration does not")))
            }
            None => Ok(()),
        }
    }
}
