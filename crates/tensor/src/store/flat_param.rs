//! Flat parameters: neighbouring parameters in one memory, with their gradients, and who owns which elements.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use candle_core::{DType, Device, Shape};

use super::flat_gradients::Gradients;
use super::flat_values::Values;
use super::layout::{FlatLayout, meet};
use super::{FlatEntry, FlatStorage, ParamGroup};
use crate::backend::Place;
use crate::backend::{MemoryKind, counted_as};
use crate::rng::Key;
use crate::{Result, TensorError, storage};

/// The parameters that lie in one memory, and the only owner of that memory: of all their values, of the shard of them that
/// this rank keeps, of all their gradients, and of the shard of those.
///
/// They are what is moved, reduced and updated at a time (the flat parameter of FSDP, Zhao et al. 2023, and the bucket of
/// DDP, Li et al. 2020). The values are in one of the states of [`super::ParamState`], the gradients in one of
/// [`super::GradState`]; methods that change a state check the one that they start from.
///
/// A rank *owns* some elements ([`FlatParam::owned`]), at first all: those that its optimizer, its clipping and its averages
/// act on. Clones are handles.
#[derive(Debug, Clone)]
pub struct FlatParam(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    index: usize,
    layout: FlatLayout,
    place: Place,
    home: Place,
    memory: RwLock<Memory>,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) owned: Range<usize>,
    pub(super) values: Values,
    pub(super) gradients: Gradients,
}

impl FlatParam {
    /// Computed with at `place`, and kept at `home` between uses.
    pub(super) fn new(index: usize, layout: FlatLayout, (place, home): (Place, Place)) -> Self {
        let memory = Memory { owned: 0..layout.len(), ..Memory::default() };
        Self(Arc::new(Inner { index, layout, place, home, memory: RwLock::new(memory) }))
    }

    /// Parameters of this layout in memory of their own on the host, in which there is nothing yet: for a server, which holds and
    /// updates values that others compute with, wherever they do.
    #[must_use]
    pub fn twin(&self) -> Self {
        Self::new(self.index(), self.0.layout.clone(), (Place::host(), Place::host()))
    }

    /// Whether both handles are of the same parameters.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The position among those of the store, in forward order.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// Whether gradients are computed for them.
    pub fn trainable(&self) -> bool {
        self.0.layout.trainable
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.layout.dtype
    }

    /// Where they are computed with, and their gradients computed.
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// Where values that are kept between uses lie, and the summed gradients that change them: at [`FlatParam::place`], or on the
    /// host.
    pub fn home(&self) -> &Place {
        &self.0.home
    }

    /// Whether values are brought from the host, where they are kept, to a device before each use.
    pub fn is_offloaded(&self) -> bool {
        self.home().is_host() && !self.place().is_host()
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.0.layout.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes all values take.
    pub fn bytes(&self) -> usize {
        storage::bytes_of(self.len(), self.dtype())
    }

    /// The parameters in order.
    pub fn entries(&self) -> &[FlatEntry] {
        &self.0.layout.entries
    }

    /// The groups of parameters in order: each of one block, and with or without weight decay.
    pub fn groups(&self) -> &[ParamGroup] {
        &self.0.layout.groups
    }

    /// The blocks that the parameters belong to, in order; an empty name is that of parameters outside of any block, which
    /// share their memory with no others.
    pub fn blocks(&self) -> impl Iterator<Item = &str> {
        let groups = self.groups();
        let first = |at: &usize| groups[..*at].iter().all(|group| group.block != groups[*at].block);
        (0..groups.len()).filter(first).map(|at| groups[at].block.as_str())
    }

    /// Whether the parameters lie outside of any block, so that nobody says when they are used.
    pub fn is_outside(&self) -> bool {
        self.groups().iter().all(|group| group.block.is_empty())
    }

    /// The elements that this rank owns.
    pub fn owned(&self) -> Range<usize> {
        self.memory().owned.clone()
    }

    /// Says which elements this rank owns. Gradients that there may be are discarded.
    ///
    /// # Errors
    /// [`TensorError::FlatState`] once the values are sharded; [`TensorError::Argument`] if the range does not lie inside.
    pub fn set_owned(&self, range: Range<usize>) -> Result<()> {
        if range.start > range.end || range.end > self.len() {
            let (value, expected) =
                (format!("{range:?} of {}", self.len()), "expected elements that there are");
            return Err(TensorError::Argument { name: "owned elements", value, expected });
        }
        let mut memory = self.memory_mut();
        match &memory.values {
            Values::Absent | Values::Full(_) => {
                memory.owned = range;
                memory.gradients = Gradients::default();
                Ok(())
            }
            values => Err(self.wrong(values.state(), "give elements to a rank", "Absent or Full")),
        }
    }

    /// The parameters, or parts of parameters, among the owned elements; ranges count from the first of these. If the rank owns
    /// all elements the entries have the parameters' shapes, and otherwise they are flat.
    pub fn owned_entries(&self) -> Vec<FlatEntry> {
        let owned = self.owned();
        if owned == (0..self.len()) {
            return self.entries().to_vec();
        }
        let entries = self.entries().iter().filter_map(|entry| {
            let range = meet(&entry.range, &owned)?;
            let first = owned.start + range.start - entry.range.start;
            let (part, shape) = (first..first + range.len(), Shape::from(range.len()));
            Some(FlatEntry { name: entry.name.clone(), shape, range, part, init: entry.init })
        });
        entries.collect()
    }

    /// The owned elements of each group that has any, counted from the first owned one, and whether weight decay applies.
    pub fn owned_groups(&self) -> Vec<(Range<usize>, bool)> {
        let owned = self.owned();
        let groups = self.groups().iter();
        groups.filter_map(|group| Some((meet(&group.range, &owned)?, group.decay))).collect()
    }

    /// The initial values of elements `range`, at home, computed from nothing but the key and the parameters' names.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn initial_values(&self, key: Key, range: Range<usize>) -> Result<FlatStorage> {
        const CHUNK: usize = 1 << 16;
        let mut scratch = vec![0.0_f64; CHUNK.min(range.len())];
        let mut narrow = Vec::new();
        let mut wide = Vec::new();
        let single = self.dtype() == DType::F32;
        if single {
            narrow.reserve_exact(range.len());
        } else {
            wide.reserve_exact(range.len());
        }
        for entry in self.entries() {
            let Some(met) = meet(&range, &entry.range) else { continue };
            let key = key.stream(&entry.name);
            for start in met.clone().step_by(CHUNK) {
                let chunk = start..(start + CHUNK).min(met.end);
                let out = &mut scratch[..chunk.len()];
                entry.init.fill(entry.shape.dims(), key, chunk, out);
                if single {
                    narrow.extend(out.iter().map(|v| *v as f32));
                } else {
                    wide.extend_from_slice(out);
                }
            }
        }
        let (len, host) = (range.len(), &Device::Cpu);
        let flat = match single {
            true => candle_core::Tensor::from_vec(narrow, len, host)?,
            false => candle_core::Tensor::from_vec(wide, len, host)?.to_dtype(self.dtype())?,
        };
        FlatStorage::new(counted_as(MemoryKind::Parameters, || self.home().put(&flat))?)
    }

    /// Bytes of parameters and of gradients that are in memory now, every element counted as often as it is held.
    pub fn held_bytes(&self) -> [usize; 2] {
        let memory = self.memory();
        [memory.values.bytes(), memory.gradients.bytes()]
    }

    pub(super) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.0.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn memory_mut(&self) -> RwLockWriteGuard<'_, Memory> {
        self.0.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that memory that is taken over has `len` elements of the type.
    pub(super) fn check(&self, flat: &FlatStorage, len: usize) -> Result<()> {
        if flat.len() != len {
            return Err(TensorError::unequal("flat parameter", &Shape::from(len), &Shape::from(flat.len())));
        }
        if flat.dtype() != self.dtype() {
            return Err(TensorError::dtype("flat parameter", flat.dtype()));
        }
        Ok(())
    }

    /// The error of a transition from a state that it cannot start from.
    pub(super) fn wrong(
        &self,
        is: impl std::fmt::Debug,
        operation: &'static str,
        expected: &'static str,
    ) -> TensorError {
        let name = self.entries().first().map(|entry| entry.name.clone()).unwrap_or_default();
        TensorError::FlatState { index: self.index(), name, is: format!("{is:?}"), operation, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Destination;
    use crate::{BuildOptions, GradState, Init, ParamState, StoreBuilder};

    /// Parameters of 4 and 3 elements with the values 1 to 7.
    fn flat() -> FlatParam {
        let builder = StoreBuilder::new(BuildOptions { fill: false, ..Default::default() });
        let scope = builder.root().pp("a").block();
        scope.param("w", (2, 2), Init::ZEROS).expect("a new name");
        scope.param("b", 3, Init::ZEROS).expect("a new name");
        let flat = builder.build().expect("small").flat_params()[0].clone();
        flat.fill(numbers(1..8)).expect("absent");
        flat
    }

    fn numbers(range: Range<u8>) -> FlatStorage {
        let values: Vec<f32> = range.map(f32::from).collect();
        let len = values.len();
        let flat = candle_core::Tensor::from_vec(values, len, &Device::Cpu).expect("small");
        FlatStorage::new(flat).expect("flat")
    }

    fn read(flat: &FlatStorage) -> Vec<f32> {
        flat.tensor().expect("of the host").to_vec1().expect("f32")
    }

    #[test]
    fn a_shard_is_a_range_of_entries_and_groups() {
        let flat = flat();
        assert_eq!(flat.owned_entries()[0].shape.dims(), [2, 2]);
        for world in 1..=5 {
            let mut seen = vec![0; 2];
            for rank in 0..world {
                flat.set_owned(rank * 7 / world..(rank + 1) * 7 / world).expect("all are in memory");
                let owned: usize = flat.owned_entries().iter().map(|entry| entry.range.len()).sum();
                assert_eq!(owned, flat.owned().len());
                for entry in flat.owned_entries() {
                    let of = usize::from(entry.name == "a.b");
                    assert_eq!((entry.part.start, entry.part.len()), (seen[of], entry.range.len()));
                    seen[of] += entry.part.len();
                    let whole = &flat.entries()[of];
                    assert_eq!(flat.owned().start + entry.range.start, whole.range.start + entry.part.start);
                }
            }
            assert_eq!(seen, [4, 3], "{world} ranks own everything once");
        }
        flat.set_owned(3..6).expect("all are in memory");
        assert_eq!(flat.owned_groups(), [(0..3, true)]);
        assert!(flat.set_owned(3..8).is_err());
    }

    #[test]
    fn values_pass_through_their_states() {
        let flat = flat();
        flat.set_owned(2..5).expect("all are in memory");
        let owned = |flat: &FlatParam| read(&flat.owned_values().expect("sound").expect("held"));
        assert_eq!((flat.state(), owned(&flat)), (ParamState::Full, vec![3.0, 4.0, 5.0]));
        let error = flat.reshard().expect_err("nothing was gathered").to_string();
        assert_eq!(
            error,
            "flat parameter 0 (from `a.w`) is Full; to free what was gathered it must be Gathered"
        );
        flat.shard().expect("all are in memory");
        assert_eq!((flat.state(), flat.held_bytes()), (ParamState::Sharded, [12, 0]));
        assert!(flat.values().is_none() && flat.set_owned(0..7).is_err());
        let (full, shard) = flat.begin_gather().expect("sharded");
        assert_eq!((flat.state(), flat.held_bytes()), (ParamState::Gathering, [40, 0]));
        assert!(flat.values().is_none() && flat.begin_gather().is_err());
        full.copy_from(&numbers(11..18)).expect("seven");
        assert_eq!(read(&shard), [3.0, 4.0, 5.0]);
        flat.end_gather().expect("under way");
        assert_eq!(read(&flat.values().expect("gathered"))[0], 11.0);
        assert_eq!(owned(&flat), [3.0, 4.0, 5.0], "what is updated is the shard");
        flat.shard().expect("gathered");
        assert_eq!((flat.state(), owned(&flat)), (ParamState::Sharded, vec![13.0, 14.0, 15.0]));
    }

    #[test]
    fn gradients_pass_through_their_states() {
        let flat = flat();
        let add = |entry: usize, value: f32| {
            let len = flat.entries()[entry].range.len();
            let grad = candle_core::Tensor::full(value, len, &Device::Cpu).expect("small");
            let Destination { array, add } = flat.grad_destination(entry)?;
            let to = array.host("test").expect("of the host");
            if add { storage::add_in_place(to, &grad) } else { storage::copy_in_place(to, &grad) }
        };
        let owned = || flat.owned_grads().expect("sound").map(|grads| read(&grads));
        assert_eq!((flat.grad_state(), owned()), (GradState::Empty, None));
        add(0, 2.0).expect("in memory");
        add(0, 1.0).expect("in memory");
        // What no gradient came to is zero.
        assert_eq!(owned(), Some(vec![3.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0]));
        flat.set_owned(2..5).expect("all are in memory");
        add(1, 4.0).expect("in memory");
        assert!(flat.owned_grads().is_err(), "they are this rank's own, not the sum");
        let (full, shard) = flat.begin_reduce(true).expect("trainable");
        assert_eq!(read(&full), [0.0, 0.0, 0.0, 0.0, 4.0, 4.0, 4.0]);
        assert_eq!((flat.grad_state(), flat.held_bytes()[1]), (GradState::Reducing, 40));
        assert!(add(0, 1.0).is_err() && flat.grads().is_err());
        shard.expect("scattered").copy_from(&numbers(7..10)).expect("three");
        flat.end_reduce(false).expect("under way");
        assert_eq!((flat.grad_state(), flat.held_bytes()[1]), (GradState::Reduced, 12));
        assert_eq!(owned(), Some(vec![7.0, 8.0, 9.0]));
        assert!(add(0, 1.0).is_err(), "the sum is not added to");
        flat.zero_grads();
        assert_eq!(
            (flat.grad_state(), flat.held_bytes()[1]),
            (GradState::Empty, 12),
            "room for the next is kept"
        );
        let (_, again) = flat.begin_reduce(true).expect("zeros");
        assert!(again.is_some() && flat.end_reduce(true).is_ok());
        flat.discard_grads();
        assert_eq!(flat.held_bytes()[1], 0);
    }

    #[test]
    fn a_twin_has_the_layout_and_values_of_its_own() {
        let flat = flat();
        let twin = flat.twin();
        assert!(!twin.is(&flat) && twin.state() == ParamState::Absent);
        assert_eq!((twin.index(), twin.len(), twin.groups()), (flat.index(), 7, flat.groups()));
        twin.set_owned(2..5).expect("absent");
        twin.fill_shard(numbers(20..23)).expect("three");
        twin.set_owned_grads(numbers(1..4)).expect("three");
        assert_eq!(read(&twin.owned_grads().expect("sound").expect("taken over")), [1.0, 2.0, 3.0]);
        assert!(twin.set_owned_grads(numbers(1..5)).is_err(), "four");
        assert_eq!(read(&twin.owned_values().expect("sound").expect("held")), [20.0, 21.0, 22.0]);
        assert_eq!(flat.owned(), 0..7);
    }

    #[test]
    fn memory_of_gradients_is_made_beforehand_and_holds_none() {
        let flat = flat();
        flat.set_owned(2..5).expect("all are in memory");
        for (scattered, bytes) in [(true, 12), (false, 12 + 28)] {
            flat.reserve_grads(scattered).expect("small");
            assert_eq!((flat.grad_state(), flat.held_bytes()[1]), (GradState::Empty, bytes));
            assert!(flat.grads().expect("sound").is_none());
        }
        flat.zero_grads();
        let (full, shard) = flat.begin_reduce(true).expect("trainable");
        assert_eq!((read(&full), shard.map(|shard| shard.len())), (vec![0.0; 7], Some(3)));
        flat.free_unreduced_grads().expect("on their way");
        flat.end_reduce(false).expect("under way");
        assert_eq!((flat.grad_state(), flat.held_bytes()[1]), (GradState::Reduced, 12));
    }
}
