//! Numbers on their way to the host, and from there.

use candle_core::Tensor;

use crate::Result;

/// Elements of an array that a device may still be computing or copying: whoever takes them later does not wait for them now.
#[must_use = "elements that nobody takes were copied for nothing"]
pub struct Arriving(Way);

enum Way {
    Here(Tensor),
    Coming(Box<dyn FnOnce() -> Result<Tensor> + Send + Sync>),
}

impl Arriving {
    /// Elements that are on the host already.
    pub fn here(elements: Tensor) -> Self {
        Self(Way::Here(elements))
    }

    /// Elements for which `wait` waits.
    pub fn coming(wait: impl FnOnce() -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self(Way::Coming(Box::new(wait)))
    }

    /// Whether they are on the host already, so that taking them waits for nothing.
    pub fn is_here(&self) -> bool {
        matches!(self.0, Way::Here(_))
    }

    /// The elements, for which this waits.
    ///
    /// # Errors
    /// The back end's, also of what was computed before.
    pub fn take(self) -> Result<Tensor> {
        match self.0 {
            Way::Here(elements) => Ok(elements),
            Way::Coming(wait) => wait(),
        }
    }
}

impl std::fmt::Debug for Arriving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.is_here() { "here" } else { "coming" };
        f.debug_tuple("Arriving").field(&state).finish()
    }
}

/// Elements of the host on their way to where they are computed with.
#[must_use = "nothing may be computed with them before they have arrived"]
pub struct Sent(Option<Box<dyn FnOnce() -> Result<()> + Send>>);

impl Sent {
    /// Elements that are there already.
    pub fn there() -> Self {
        Self(None)
    }

    /// Elements that what is computed after `order` will find there.
    pub fn on_the_way(order: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        Self(Some(Box::new(order)))
    }

    /// What is computed from now on finds them. The host does not wait.
    ///
    /// # Errors
    /// The back end's.
    pub fn arrive(self) -> Result<()> {
        self.0.map_or(Ok(()), |order| order())
    }
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.0.is_none() { "there" } else { "on the way" };
        f.debug_tuple("Sent").field(&state).finish()
    }
}
