//! A part of a batch, as cudarc sees device memory.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};

use crate::{Error, ErrorKind, Result};

/// Elements on a GPU, borrowed from a [`Batch`](crate::Batch): derefs to cudarc's `CudaSlice`, and never frees.
#[derive(Debug)]
pub struct DeviceSlice<'b, T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    batch: PhantomData<&'b T>,
}

impl<T> DeviceSlice<'_, T> {
    /// # Safety
    /// `len` elements from `pointer` on are allocated on the stream's device for as long as the value lives, and are
    /// valid as `T`.
    ///
    /// # Errors
    /// `Device` if the GPU fails: cudarc makes events for the slice, and panics where it cannot.
    pub(crate) unsafe fn new(stream: &Arc<CudaStream>, pointer: u64, len: usize) -> Result<Self> {
        // SAFETY: the caller vouches for the memory. The slice would free it, which `drop` below prevents.
        let made = catch_unwind(AssertUnwindSafe(|| unsafe { stream.upgrade_device_ptr(pointer, len) }));
        match made {
            Ok(slice) => Ok(DeviceSlice { slice: ManuallyDrop::new(slice), batch: PhantomData }),
            Err(panic) => {
                let why = crate::loader::panic_message(&*panic);
                Err(Error::new(ErrorKind::Device, format!("no slice can be made of the batch: {why}")))
            }
        }
    }
}

impl<T> Deref for DeviceSlice<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> Drop for DeviceSlice<'_, T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Drops the stream and the events of the slice, and leaves the memory, which is the ring's.
        let _ = slice.leak();
    }
}
