//! Weights of a part, from one file or several, tensor by tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use phalanx_tensor::ParamStore;
use phalanx_tensor::io::{TensorFile, without_wrappers};

use super::DiffusersError;
use super::json::Json;

/// The files of a part's weights.
#[derive(Debug)]
pub(super) struct Weights {
    folder: PathBuf,
    files: Vec<TensorFile>,
    /// The places of tensors by name, without prefixes of wrappers.
    places: BTreeMap<String, Place>,
}

/// A tensor's file, and its name there.
#[derive(Debug)]
struct Place {
    file: usize,
    name: String,
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
        let pickles = [format!("{stem}.bin"), "pytorch_model.bin".to_owned()];
        if let (true, Some(other)) =
            (paths.is_empty(), pickles.iter().find(|name| folder.join(name).is_file()))
        {
            let problem =
                format!("it is of torch.save; convert it to {} (`safetensors.torch.save_file`)", single[0]);
            return Err(DiffusersError::unfit(&folder.join(other), problem));
        }
        if paths.is_empty() {
            let wanted = format!("{} (or {}, or an index of several files)", single[0], single[1]);
            return Err(DiffusersError::Missing { folder: folder.to_owned(), wanted });
        }
        let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut weights = Self { folder: folder.to_owned(), files, places: BTreeMap::new() };
        weights.places = weights.places(&|_| true);
        Ok(weights)
    }

    /// The places of tensors by name, without the prefix of wrappers that leaves the most names that are wanted.
    fn places(&self, is_wanted: &dyn Fn(&str) -> bool) -> BTreeMap<String, Place> {
        let names: Vec<&str> = self.files.iter().flat_map(TensorFile::names).collect();
        let plain = without_wrappers(&names, is_wanted);
        let mut places = BTreeMap::new();
        for (file, tensors) in self.files.iter().enumerate() {
            for name in tensors.names() {
                let place = Place { file, name: name.to_owned() };
                places.insert(plain.get(name).map_or_else(|| name.to_owned(), Clone::clone), place);
            }
        }
        places
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
        let file = &self.files[place.file];
        let shape = file.get(&place.name).map(|header| header.shape.clone()).unwrap_or_default();
        Ok(file.read(&place.name, 0..shape.iter().product())?.reshape(shape)?)
    }

    /// Reads the tensors whose names `is_wanted` accepts.
    pub(super) fn read_all(
        &mut self,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<(String, Tensor)>, DiffusersError> {
        self.places = self.places(&is_wanted);
        let wanted = self.names().filter(|name| is_wanted(name));
        wanted.map(|name| Ok((name.to_owned(), self.read(name)?))).collect()
    }

    /// True for tensors of floating-point numbers: others, such as positions, are no weights.
    fn is_weight(&self, place: &Place) -> bool {
        let header = self.files[place.file].get(&place.name);
        header.is_some_and(|header| header.dtype.is_float())
    }

    /// Fills a store, with one further tensor in memory at a time; `called` returns a parameter's name in the files.
    pub(super) fn fill(
        &mut self,
        store: &ParamStore,
        called: impl Fn(&str) -> Vec<String>,
    ) -> Result<(), DiffusersError> {
        let wanted: BTreeSet<String> = store.params().iter().flat_map(|param| called(param.name())).collect();
        self.places = self.places(&|name| wanted.contains(name));
        let mut used = BTreeSet::new();
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
        let unused = self.places.iter().find(|(name, place)| !used.contains(*name) && self.is_weight(place));
        match unused {
            Some((strange, _)) => {
                Err(self.wrong(format!("the weights have `{strange}`, which the configuration does not")))
            }
            None => Ok(()),
        }
    }
}
