//! A batch: a slot of the ring in the caller's hands.

use std::sync::Arc;

use bytemuck::AnyBitPattern;
use cudarc::driver::CudaStream;

use super::Shared;
use super::ring::Lent;
use crate::backend::BytesByWay;
use crate::dataset::{Column, Dtype};
use crate::memory::{Device, DeviceSlice};
use crate::order::State;
use crate::{Error, Result};

/// A batch of samples in memory. Dropping it gives its slot back to the ring.
///
/// It may outlive its loader, and may be sent to another thread; its memory stays valid until it is dropped.
///
/// # On a GPU
///
/// The bytes may still be on their way when the batch comes: nothing blocks the host. A stream that works on them
/// has to wait, and the slot has to wait for the stream:
///
/// ```no_run
/// # fn step(batch: gpufeed::Batch, stream: &std::sync::Arc<gpufeed::cudarc::driver::CudaStream>) -> gpufeed::Result<()> {
/// batch.wait_on(stream)?; // what is queued on the stream from here on finds the bytes there
/// let images = batch.column("image")?.device_ptr();
/// // ... queue kernels that read at `images` on the stream ...
/// drop(batch); // the slot is filled again only after what was queued on the stream until here
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Batch {
    pub(super) slot: Lent,
    shared: Arc<Shared>,
}

impl Batch {
    pub(super) fn new(slot: Lent, shared: Arc<Shared>) -> Self {
        Batch { slot, shared }
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

    /// The rows whose own sample cannot be read, each with that sample: they repeat another one of the batch, which
    /// [`samples`](Batch::samples) has. Empty unless [`BadSamples::Skip`](crate::BadSamples::Skip) was asked for.
    pub fn skipped(&self) -> &[(u64, u64)] {
        &self.slot.info().skipped
    }

    /// The number of the batch in its epoch, from 0. In an epoch that was resumed, those before it count as if they had
    /// been of the present size.
    pub fn index(&self) -> u64 {
        self.slot.info().batch
    }

    /// The number of the epoch.
    pub fn epoch(&self) -> u64 {
        self.slot.info().epoch
    }

    /// Where the run stands when this batch has been used: a loader that goes on from it gives the next one, on any
    /// number of ranks. All ranks have the same state at the same batch.
    pub fn state(&self) -> State {
        self.shared.state(self.slot.info().next)
    }

    /// The way that the batch's bytes took.
    pub fn bytes_by_way(&self) -> BytesByWay {
        self.slot.info().ways
    }

    /// The devices that the batch is on: one, or several that each have all of it.
    pub fn devices(&self) -> Vec<Device> {
        self.slot.ring().target().devices()
    }

    /// The values of one column, by its name.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that no column has.
    pub fn column(&self, name: &str) -> Result<ColumnView<'_>> {
        let columns = self.shared.dataset.columns();
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
        (0..self.shared.dataset.columns().len()).map(|index| self.view(index))
    }

    /// Has a stream of the caller wait until the batch is on the stream's device, and the batch's slot, once the
    /// batch is dropped, for what is queued on the stream until then. The host waits for neither.
    ///
    /// Any number of streams can use a batch. (A stream of another library is adopted by cudarc's
    /// `CudaContext::wrap_borrowed_stream`; it must live until the batch's slot has been filled again or the loader
    /// has gone.)
    ///
    /// # Errors
    /// `InvalidArgument` for a batch in host memory, or a stream of a device or context that the batch is not on;
    /// `Device` if the GPU fails, or after a fork.
    pub fn wait_on(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let contexts = self.slot.ring().target().contexts();
        let Some(events) = &self.slot.info().events else {
            return Err(Error::argument(
                "the batch is in host memory, there is nothing for a stream to wait for",
            ));
        };
        // Any of the devices will do; if it is none of them, the first says why.
        let device = contexts.iter().position(|context| context.is_of(stream)).unwrap_or(0);
        contexts.get(device).map_or(Ok(()), |context| context.check_stream(stream))?;
        events.lend_to(device, stream)
    }

    /// Gives the batch back; its slot is filled again only after what is queued on the stream by now.
    ///
    /// The same as [`wait_on`](Batch::wait_on) and a drop.
    ///
    /// # Errors
    /// As `wait_on`. The batch is given back in any case.
    pub fn release_after(self, stream: &Arc<CudaStream>) -> Result<()> {
        self.wait_on(stream)
    }

    /// Waits until the batch is on all of its devices, which for host memory it always is.
    pub(crate) fn arrive(&self) -> Result<()> {
        match &self.slot.info().events {
            Some(events) => (0..self.devices().len()).try_for_each(|device| events.wait_ready(device)),
            None => Ok(()),
        }
    }

    fn view(&self, index: usize) -> ColumnView<'_> {
        let column = &self.shared.dataset.columns()[index];
        // The plan was made for these samples, so the product fits: the slot holds it.
        let len = self.len() * column.sample_bytes() as usize;
        let start = self.slot.info().starts[index];
        ColumnView { column, rows: self.len(), slot: &self.slot, start, len, device: 0 }
    }
}

/// The values that one column has in a batch: one after the other, without gaps.
#[derive(Debug, Clone, Copy)]
pub struct ColumnView<'b> {
    column: &'b Column,
    rows: usize,
    slot: &'b Lent,
    start: usize,
    len: usize,
    /// Which of the batch's devices.
    device: usize,
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

    /// The size of the whole in bytes.
    pub fn size_bytes(&self) -> usize {
        self.len
    }

    /// All bytes, in the order of the samples, in host memory.
    ///
    /// # Errors
    /// `InvalidArgument` for a batch on a GPU, whose memory the host cannot touch: see
    /// [`copy_to_host`](ColumnView::copy_to_host).
    pub fn bytes(&self) -> Result<&'b [u8]> {
        self.slot.bytes(self.start, self.len).ok_or_else(|| {
            Error::argument(format!(
                "column {:?} is in the memory of a GPU; copy_to_host gives its bytes",
                self.name()
            ))
        })
    }

    /// The bytes of one sample, in host memory.
    ///
    /// # Errors
    /// `InvalidArgument` beyond the last sample, and for a batch on a GPU.
    pub fn sample(&self, row: usize) -> Result<&'b [u8]> {
        let size = self.column.sample_bytes() as usize;
        if row >= self.rows {
            return Err(Error::argument(format!("row {row} is beyond the batch's {} samples", self.rows)));
        }
        Ok(&self.bytes()?[row * size..(row + 1) * size])
    }

    /// All elements as a slice of numbers, in host memory. It is aligned for the column's dtype.
    ///
    /// ```no_run
    /// # fn look(batch: &gpufeed::Batch) -> gpufeed::Result<()> {
    /// let embeddings: &[f32] = batch.column("embedding")?.elements()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if `T` does not have the size of the column's dtype, or needs a larger alignment, and for a
    /// batch on a GPU.
    pub fn elements<T: AnyBitPattern>(&self) -> Result<&'b [T]> {
        self.check_size(size_of::<T>(), std::any::type_name::<T>())?;
        let (dtype, wanted) = (self.dtype(), std::any::type_name::<T>());
        bytemuck::try_cast_slice(self.bytes()?).map_err(|error| {
            Error::argument(format!(
                "column {:?} of dtype {dtype} cannot be seen as {wanted}: {error}",
                self.name()
            ))
        })
    }

    /// Copies all bytes to the host, from wherever they are, and waits for them to be there first. `to` is emptied
    /// before. For looking at a batch, not for training: it blocks.
    ///
    /// # Errors
    /// `Device` if the GPU fails, or after a fork.
    pub fn copy_to_host(&self, to: &mut Vec<u8>) -> Result<()> {
        to.clear();
        match self.slot.bytes(self.start, self.len) {
            Some(bytes) => {
                to.extend_from_slice(bytes);
                Ok(())
            }
            None => {
                to.resize(self.len, 0);
                self.slot.copy_back(self.device, self.start, to)
            }
        }
    }

    /// The same column on another of the batch's devices.
    ///
    /// # Errors
    /// `InvalidArgument` for a device that the batch is not on.
    pub fn on(&self, device: Device) -> Result<ColumnView<'b>> {
        let devices = self.slot.ring().target().devices();
        match devices.iter().position(|known| *known == device) {
            Some(index) => Ok(ColumnView { device: index, ..*self }),
            None => Err(Error::argument(format!("the batch is not on device {device}"))),
        }
    }

    /// The address of the first byte on the GPU; `None` in host memory.
    ///
    /// It may be used by work on streams that [`Batch::wait_on`] was called with, queued before the batch is
    /// dropped.
    pub fn device_ptr(&self) -> Option<u64> {
        self.slot.device_ptr(self.device, self.start)
    }

    /// The elements as a slice on the GPU that cudarc's functions take, borrowed from the batch. `stream` is one
    /// that [`Batch::wait_on`] was called with.
    ///
    /// # Errors
    /// `InvalidArgument` in host memory, for a stream of another device or context, or if `T` does not have the size
    /// of the column's dtype; `Device` if the GPU fails.
    pub fn device_slice<T>(&self, stream: &Arc<CudaStream>) -> Result<DeviceSlice<'b, T>> {
        self.check_size(size_of::<T>(), std::any::type_name::<T>())?;
        let Some(pointer) = self.device_ptr() else {
            return Err(Error::argument(format!("column {:?} is in host memory", self.name())));
        };
        self.slot.ring().target().contexts()[self.device].check_stream(stream)?;
        // SAFETY: the range lies in the lent slot, which the returned value borrows; elements have any bit pattern
        // that the file had, and T's size was checked.
        unsafe { DeviceSlice::new(stream, pointer, self.len / size_of::<T>()) }
    }

    fn check_size(&self, wanted: usize, name: &str) -> Result<()> {
        let dtype = self.dtype();
        if wanted as u64 == dtype.size() {
            return Ok(());
        }
        Err(Error::argument(format!(
            "column {:?} has elements of dtype {dtype}, {} bytes each; a slice of {name} was asked for, {wanted} bytes each",
            self.name(),
            dtype.size(),
        )))
    }
}
