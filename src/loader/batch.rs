//! A batch: a slot of the ring in the caller's hands.

use std::sync::Arc;

use bytemuck::AnyBitPattern;

use super::ring::Lent;
use crate::backend::BytesByWay;
use crate::dataset::{Column, Dataset, Dtype};
use crate::{Error, Result};

/// A batch of samples in memory. Dropping it gives its slot back to the ring.
///
/// It may outlive its loader, and may be sent to another thread; its memory stays valid until it is dropped.
#[derive(Debug)]
pub struct Batch {
    slot: Lent,
    dataset: Arc<Dataset>,
    epoch: u64,
}

impl Batch {
    pub(super) fn new(slot: Lent, dataset: Arc<Dataset>, epoch: u64) -> Self {
        Batch { slot, dataset, epoch }
    }

    /// The number of samples, padding included.
    pub fn len(&self) -> usize {
        self.samples().len()
    }

    /// Whether there is no sample; never true.
    pub fn is_empty(&self) -> bool {
        self.samples().is_empty()
    }

    /// The sample numbers, in the order in which the samples lie in memory.
    pub fn samples(&self) -> &[u64] {
        &self.slot.info().samples
    }

    /// How many samples at the end repeat the first ones of the epoch, to fill the batch.
    pub fn padding(&self) -> u64 {
        self.slot.info().padding
    }

    /// The number of the batch in its epoch, from 0.
    pub fn index(&self) -> u64 {
        self.slot.info().batch
    }

    /// The number of the epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The way that the batch's bytes took.
    pub fn bytes_by_way(&self) -> BytesByWay {
        self.slot.info().ways
    }

    /// The values of one column, by its name.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that no column has.
    pub fn column(&self, name: &str) -> Result<ColumnView<'_>> {
        let columns = self.dataset.columns();
        match columns.iter().position(|column| column.name() == name) {
            Some(index) => Ok(self.view(index)),
            None => {
                let known: Vec<_> = columns.iter().map(Column::name).collect();
                Err(Error::argument(format!("no column is named {name:?}; there are {}", known.join(", "))))
            }
        }
    }

    /// The values of every column, in the order of the dataset's columns.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = ColumnView<'_>> + '_ {
        (0..self.dataset.columns().len()).map(|index| self.view(index))
    }

    fn view(&self, index: usize) -> ColumnView<'_> {
        let column = &self.dataset.columns()[index];
        // The plan was made for these samples, so the product fits: the slot holds it.
        let len = self.len() * column.sample_bytes() as usize;
        let bytes = self.slot.bytes(self.slot.info().plan.starts[index], len);
        ColumnView { column, rows: self.len(), bytes }
    }
}

/// The values that one column has in a batch: one after the other, without gaps.
#[derive(Debug, Clone, Copy)]
pub struct ColumnView<'b> {
    column: &'b Column,
    rows: usize,
    bytes: &'b [u8],
}

impl<'b> ColumnView<'b> {
    /// The column's name.
    pub fn name(&self) -> &'b str {
        self.column.name()
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.column.dtype()
    }

    /// The shape of the whole: samples in the batch, then the shape of one sample.
    pub fn shape(&self) -> Vec<u64> {
        std::iter::once(self.rows as u64).chain(self.column.shape().iter().copied()).collect()
    }

    /// All bytes, in the order of the samples.
    pub fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// The bytes of one sample; `None` beyond the last.
    pub fn sample(&self, row: usize) -> Option<&'b [u8]> {
        let size = self.column.sample_bytes() as usize;
        self.bytes.get(row.checked_mul(size)?..)?.get(..size)
    }

    /// All elements as a slice of numbers. The memory is aligned for the column's dtype.
    ///
    /// ```no_run
    /// # fn look(batch: &gpufeed::Batch) -> gpufeed::Result<()> {
    /// let embeddings: &[f32] = batch.column("embedding")?.elements()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if `T` does not have the size of the column's dtype, or needs a larger alignment.
    pub fn elements<T: AnyBitPattern>(&self) -> Result<&'b [T]> {
        let (wanted, dtype) = (size_of::<T>() as u64, self.dtype());
        if wanted != dtype.size() {
            return Err(Error::argument(format!(
                "column {:?} has elements of dtype {dtype}, {} bytes each; a slice of {} was asked for, {wanted} bytes each",
                self.name(),
                dtype.size(),
                std::any::type_name::<T>()
            )));
        }
        bytemuck::try_cast_slice(self.bytes).map_err(|error| {
            Error::argument(format!(
                "column {:?} of dtype {dtype} cannot be seen as {}: {error}",
                self.name(),
                std::any::type_name::<T>()
            ))
        })
    }
}
