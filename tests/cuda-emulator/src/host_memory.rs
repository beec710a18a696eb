//! Pinned host memory: allocated by the driver, or the caller's own pages registered with it.

use std::ffi::c_void;
use std::sync::Arc;

use crate::call;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::faults;
use crate::ffi::{DevicePtr, Out};
use crate::memory::{Kind, Memory, page_size};
use crate::misuse::Misuse;

/// `CU_MEMHOSTALLOC_PORTABLE | DEVICEMAP | WRITECOMBINED`.
const ALLOC_FLAGS: u32 = 7;
const DEVICEMAP: u32 = 2;

/// `CU_MEMHOSTREGISTER_PORTABLE | DEVICEMAP`, and the two that no device here supports.
const REGISTER_FLAGS: u32 = 3;
const IO_MEMORY: u32 = 4;
const READ_ONLY: u32 = 8;

fn allocate(call: &'static str, pointer: Out<usize>, size: usize, flags: u32) -> Code {
    call::in_context(call, |driver, context| {
        if pointer.is_null() || size == 0 || flags & !ALLOC_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        faults::allocate_host(size as u64)?;
        let memory = Arc::new(Memory::on_host(size, driver.owner(context)?, flags)?);
        driver.addresses.insert(memory.clone());
        pointer.set(memory.base)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(pointer: Out<usize>, size: usize) -> Code {
    allocate("cuMemAllocHost_v2", pointer, size, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(pointer: Out<usize>, size: usize, flags: u32) -> Code {
    allocate("cuMemHostAlloc", pointer, size, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(pointer: usize) -> Code {
    call::in_context("cuMemFreeHost", |driver, _| {
        let memory = driver.to_free(pointer, |kind| kind == Kind::HostAlloc)?;
        driver.free_checked(&memory);
        Ok(())
    })
}

/// Whether every page of the range is mapped.
fn is_mapped(start: usize, end: usize) -> bool {
    let page = page_size();
    let first = start & !(page - 1);
    let pages = end.div_ceil(page) - first / page;
    let mut residency = vec![0u8; pages];
    // SAFETY: mincore only reports on the range, and writes one byte per page into a vector of that size.
    unsafe { libc::mincore(first as *mut c_void, pages * page, residency.as_mut_ptr()) == 0 }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(pointer: usize, size: usize, flags: u32) -> Code {
    call::in_context("cuMemHostRegister_v2", |driver, context| {
        if flags & !(REGISTER_FLAGS | IO_MEMORY | READ_ONLY) != 0 || pointer == 0 || size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & (IO_MEMORY | READ_ONLY) != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let page = page_size();
        let end =
            pointer.checked_add(size).filter(|end| *end <= usize::MAX - page).ok_or(Code::INVALID_VALUE)?;
        // Whole pages are pinned, so that two registrations may not share one.
        let pages = (pointer & !(page - 1), end.next_multiple_of(page));
        if let Some(other) = driver.addresses.overlapping(pages.0, pages.1) {
            if other.kind.on_device() {
                let detail = "device memory passed as host memory";
                return driver.misuse(
                    Misuse::DevicePointerAsHost,
                    pointer as u64,
                    Code::INVALID_VALUE,
                    detail,
                );
            }
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if !is_mapped(pointer, end) {
            let detail = format!("not all of the {size} bytes are mapped");
            return driver.misuse(Misuse::UnknownPointer, pointer as u64, Code::INVALID_VALUE, &detail);
        }
        faults::register(size as u64)?;
        let owner = driver.owner(context)?;
        driver.addresses.insert(Arc::new(Memory::registered(pointer, size, owner, flags)));
        Ok(())
    })
}

fn registration(driver: &Driver, pointer: usize) -> Answer<Arc<Memory>> {
    let wrong = |misuse, code, detail: &str| driver.misuse(misuse, pointer as u64, code, detail);
    match driver.addresses.find(pointer) {
        Some(memory) if memory.kind == Kind::HostRegistered && memory.base == pointer => Ok(memory.clone()),
        Some(memory) if memory.kind == Kind::HostRegistered => {
            let detail = format!("{} bytes into the registration", pointer - memory.base);
            wrong(Misuse::WrongFree, Code::INVALID_VALUE, &detail)
        }
        Some(memory) => {
            let detail = format!("{:?} memory was never registered", memory.kind);
            wrong(Misuse::WrongFree, Code::INVALID_VALUE, &detail)
        }
        None => {
            wrong(Misuse::NotRegistered, Code::HOST_MEMORY_NOT_REGISTERED, "not registered, or no longer")
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(pointer: usize) -> Code {
    call::in_context("cuMemHostUnregister", |driver, _| {
        if pointer == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let memory = registration(driver, pointer)?;
        if !is_mapped(memory.base, memory.end()) {
            let detail = "the pages were unmapped while they were registered";
            let _ = driver.misuse::<()>(Misuse::UnmappedRegistration, pointer as u64, Code::SUCCESS, detail);
        }
        driver.free_checked(&memory);
        Ok(())
    })
}

/// Under unified addressing the device knows pinned memory by the host's address.
#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(
    device_pointer: Out<DevicePtr>,
    pointer: usize,
    flags: u32,
) -> Code {
    call::in_context("cuMemHostGetDevicePointer_v2", |driver, _| {
        let pinned = driver.addresses.find(pointer).is_some_and(|memory| !memory.kind.on_device());
        if flags != 0 || !pinned {
            return Err(Code::INVALID_VALUE);
        }
        device_pointer.set(pointer as DevicePtr)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetFlags(flags: Out<u32>, pointer: usize) -> Code {
    call::in_context("cuMemHostGetFlags", |driver, _| {
        let memory = driver.addresses.find(pointer).filter(|memory| memory.kind == Kind::HostAlloc);
        // Unified addressing maps every allocation, asked for or not.
        flags.set(memory.ok_or(Code::INVALID_VALUE)?.flags | DEVICEMAP)
    })
}
