//! Low-rank compression on a GPU, on the communication stream.

use phalanx_cuda::{ElementType, Stream, kernels};
use phalanx_kernels::{Run, ThinMatrix};

use super::Cuda;
use crate::Result;
use crate::backend::{Array, DeviceLowRank, MemoryKind, counted_as};

const OP: &str = "a codec of matrices";

impl DeviceLowRank for Cuda {
    fn unspoiled(&self) -> Result<Array> {
        let flag = self.gpu().unwritten(ElementType::U32, 1)?;
        flag.zero_on(Stream::Communication)?;
        Ok(self.array(flag, 1))
    }

    fn move_runs(
        &self,
        runs: &[Run],
        (from, to): (&Array, &Array),
        add: bool,
        spoiled: Option<&Array>,
    ) -> Result<()> {
        let of = (self.slice(OP, from)?, self.slice(OP, to)?);
        Ok(kernels::move_runs(self.gpu(), runs, of, add, self.slice_if(OP, spoiled)?)?)
    }

    fn scale(&self, values: &Array, factor: f32, spoiled: &Array) -> Result<()> {
        Ok(kernels::scale(self.gpu(), self.slice(OP, values)?, factor, self.slice(OP, spoiled)?)?)
    }

    fn project(
        &self,
        matrices: &[ThinMatrix],
        (values, held): (&Array, &Array),
        q: &Array,
        p: &Array,
    ) -> Result<()> {
        let of = (self.slice(OP, values)?, self.slice(OP, held)?);
        Ok(kernels::project(self.gpu(), matrices, of, self.slice(OP, q)?, self.slice(OP, p)?)?)
    }

    fn project_back(
        &self,
        matrices: &[ThinMatrix],
        (values, p): (&Array, &Array),
        q: &Array,
    ) -> Result<Array> {
        let len = kernels::project_back_numbers(matrices);
        let scratch = counted_as(MemoryKind::Gradients, || self.gpu().unwritten(ElementType::F32, len))?;
        let of = (self.slice(OP, values)?, self.slice(OP, p)?);
        kernels::project_back(self.gpu(), matrices, of, self.slice(OP, q)?, &scratch)?;
        Ok(self.array(scratch, len))
    }

    fn orthogonalise(&self, matrices: &[ThinMatrix], p: &Array) -> Result<()> {
        Ok(kernels::orthogonalise(self.gpu(), matrices, self.slice(OP, p)?)?)
    }

    fn expand(
        &self,
        matrices: &[ThinMatrix],
        (values, held): (&Array, &Array),
        (p, q): (&Array, &Array),
        spoiled: &Array,
        ranks: f32,
    ) -> Result<()> {
        let of = (self.slice(OP, values)?, self.slice(OP, held)?);
        let by = (self.slice(OP, p)?, self.slice(OP, q)?);
        Ok(kernels::expand(self.gpu(), matrices, of, by, self.slice(OP, spoiled)?, ranks)?)
    }
}
