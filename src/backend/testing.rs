//! Readers for tests.

use super::Reader;

/// Puts a reader of a test around the real one.
pub(crate) struct Wrap(pub(crate) Box<dyn FnOnce(Box<dyn Reader>) -> Box<dyn Reader> + Send>);

impl std::fmt::Debug for Wrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wrap")
    }
}
