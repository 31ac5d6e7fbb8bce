//! Protection domains: what may be used together.

use std::sync::Arc;

use super::device::Device;
use super::error::VerbsError;
use super::raw;

/// A domain: queue pairs reach the memory regions and windows of their own domain only.
#[derive(Debug)]
pub struct ProtectionDomain {
    raw: Arc<raw::Pd>,
    device: Arc<Device>,
}

impl ProtectionDomain {
    /// A new domain of a device.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        let raw = raw::Pd::new(device.raw());
        let raw = raw.map_err(|source| device.failed("allocate a protection domain", source))?;
        Ok(Arc::new(Self {
            raw: Arc::new(raw),
            device: Arc::clone(device),
        }))
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn raw(&self) -> &Arc<raw::Pd> {
        &self.raw
    }
}
