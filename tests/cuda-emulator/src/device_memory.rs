//! Device memory: allocated at once, or in the order of a stream.

use std::sync::Arc;

use crate::call;
use crate::context::ContextId;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::faults;
use crate::ffi::{DevicePtr, Out};
use crate::memory::{Kind, Memory, Owner};
use crate::misuse::Misuse;
use crate::queue::StreamId;
use crate::settings::settings;
use crate::stream::{on_stream, per_thread};
use crate::work::Work;

impl Driver {
    pub(crate) fn owner(&self, context: ContextId) -> Answer<Owner> {
        Ok(Owner { context, device: self.context(context)?.device })
    }

    fn allocate(&mut self, kind: Kind, size: usize, owner: Owner) -> Answer<Arc<Memory>> {
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let used = self.device(owner.device)?.used;
        let total = used.checked_add(size as u64).ok_or(Code::OUT_OF_MEMORY)?;
        if total > settings().memory {
            return Err(Code::OUT_OF_MEMORY);
        }
        faults::allocate(size as u64)?;
        let memory = Arc::new(Memory::on_device(kind, size, owner)?);
        self.device_mut(owner.device)?.used = total;
        self.addresses.insert(memory.clone());
        Ok(memory)
    }

    /// The device has the bytes of an allocation back.
    pub(crate) fn return_bytes(&mut self, memory: &Memory) {
        if let Ok(device) = self.device_mut(memory.device) {
            device.used = device.used.saturating_sub(memory.len as u64);
        }
    }

    /// Ends an allocation or a registration, whatever its kind, without any check.
    pub(crate) fn release(&mut self, memory: &Arc<Memory>) {
        self.addresses.remove(memory);
        if memory.kind.on_device() {
            self.return_bytes(memory);
        } else if let Some(pages) = memory.reserved() {
            pages.seal();
        }
    }

    /// The allocation that a caller wants to give back: `address` must be its first byte, and `fits` its kind.
    pub(crate) fn to_free(&self, address: usize, fits: impl Fn(Kind) -> bool) -> Answer<Arc<Memory>> {
        let wrong = |misuse, detail: &str| self.misuse(misuse, address as u64, Code::INVALID_VALUE, detail);
        match self.addresses.find(address) {
            Some(memory) if memory.base != address => {
                wrong(Misuse::WrongFree, &format!("{} bytes into the allocation", address - memory.base))
            }
            Some(memory) if !fits(memory.kind) => wrong(
                Misuse::WrongFree,
                &format!("{:?} memory must be given back in another way", memory.kind),
            ),
            Some(memory) => Ok(memory.clone()),
            None if self.addresses.was_freed(address).is_some() => wrong(Misuse::DoubleFree, "freed before"),
            None => wrong(Misuse::UnknownPointer, "never allocated"),
        }
    }

    /// Frees what [`Driver::to_free`] found. CUDA documents no error for memory that is still in use, and so the
    /// caller is reported and yet served.
    pub(crate) fn free_checked(&mut self, memory: &Arc<Memory>) {
        let address = memory.base as u64;
        if memory.is_held() {
            let detail = "still registered elsewhere (cuda_emulator_hold)";
            let _ = self.misuse::<()>(Misuse::FreeWhileHeld, address, Code::SUCCESS, detail);
        }
        if memory.in_flight() {
            let detail = "operations that use this memory have not finished";
            let _ = self.misuse::<()>(Misuse::FreeInFlight, address, Code::SUCCESS, detail);
            self.drain(memory);
        }
        self.release(memory);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(pointer: Out<DevicePtr>, size: usize) -> Code {
    call::in_context("cuMemAlloc_v2", |driver, context| {
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let owner = driver.owner(context)?;
        pointer.set(driver.allocate(Kind::Device, size, owner)?.base as DevicePtr)
    })
}

/// Also takes stream-ordered memory, whose pending uses must then be over.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(pointer: DevicePtr) -> Code {
    call::in_context("cuMemFree_v2", |driver, _| {
        let memory = driver.to_free(pointer as usize, Kind::on_device)?;
        driver.free_checked(&memory);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Code {
    call::in_context("cuMemGetInfo_v2", |driver, context| {
        let device = driver.context(context)?.device;
        let memory = settings().memory;
        free.set_if_asked((memory - driver.device(device)?.used.min(memory)) as usize);
        total.set_if_asked(memory as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(base: Out<DevicePtr>, size: Out<usize>, pointer: DevicePtr) -> Code {
    call::in_context("cuMemGetAddressRange_v2", |driver, _| {
        // A question about any pointer is legal, and so an unknown one is an error but no misuse.
        let memory = driver.addresses.find(pointer as usize).ok_or(Code::NOT_FOUND)?;
        base.set_if_asked(memory.base as DevicePtr);
        size.set_if_asked(memory.len);
        Ok(())
    })
}

fn allocate_async(
    call: &'static str,
    pointer: Out<DevicePtr>,
    size: usize,
    pool: Option<usize>,
    stream: StreamId,
) -> Code {
    on_stream(call, stream, |driver, stream| {
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut owner = driver.owner(driver.context_of(stream)?)?;
        if let Some(pool) = pool {
            owner.device = driver.device_of_pool(pool)?;
        }
        let memory = driver.allocate(Kind::Pool, size, owner)?;
        driver.enqueue(stream, Work::Bear(memory.clone()), Vec::new());
        pointer.set(memory.base as DevicePtr)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(pointer: Out<DevicePtr>, size: usize, stream: StreamId) -> Code {
    allocate_async("cuMemAllocAsync", pointer, size, None, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync(
    pointer: Out<DevicePtr>,
    size: usize,
    pool: usize,
    stream: StreamId,
) -> Code {
    allocate_async("cuMemAllocFromPoolAsync", pointer, size, Some(pool), stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(pointer: DevicePtr, stream: StreamId) -> Code {
    on_stream("cuMemFreeAsync", stream, |driver, stream| {
        let memory = driver.to_free(pointer as usize, |kind| kind == Kind::Pool)?;
        if memory.is_held() {
            let detail = "still registered elsewhere (cuda_emulator_hold)";
            let _ = driver.misuse::<()>(Misuse::FreeWhileHeld, pointer, Code::SUCCESS, detail);
        }
        // From now on a new use is a use after free; uses that were queued before still find their bytes.
        driver.addresses.remove(&memory);
        driver.enqueue(stream, Work::Bury(memory), Vec::new());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync_ptsz(pointer: Out<DevicePtr>, size: usize, stream: StreamId) -> Code {
    cuMemAllocAsync(pointer, size, per_thread(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    pointer: Out<DevicePtr>,
    size: usize,
    pool: usize,
    stream: StreamId,
) -> Code {
    cuMemAllocFromPoolAsync(pointer, size, pool, per_thread(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync_ptsz(pointer: DevicePtr, stream: StreamId) -> Code {
    cuMemFreeAsync(pointer, per_thread(stream))
}
