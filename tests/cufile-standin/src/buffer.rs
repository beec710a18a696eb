//! Memory, registered by its first byte.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::call::{self, When};
use crate::cuda;
use crate::error::{Answer, Error, code};
use crate::misuse::{Misuse, report};
use crate::settings::settings;
use crate::state::{self, Buffer, State};
use crate::statistics::{self, Event};

fn register(call: &str, base: u64, len: usize, flags: i32) -> Answer {
    if base == 0 || len == 0 || flags != 0 {
        return Err(Error::cufile(code::INVALID_VALUE));
    }
    let refuse = |misuse, code, detail: &str| {
        report(misuse, call, base, detail);
        Err(Error::cufile(code))
    };
    let Some(memory) = cuda::memory(base) else {
        return refuse(Misuse::HostPointer, code::CUDA_POINTER_INVALID, "no memory of this driver");
    };
    if memory.on_host {
        return refuse(Misuse::HostPointer, code::CUDA_MEMORY_TYPE_INVALID, "host memory");
    }
    if memory.context == 0 {
        return refuse(Misuse::PoolMemory, code::CUDA_POINTER_INVALID, "stream-ordered memory");
    }
    call::some_context(call, base)?;
    call::context_of(call, Some(memory.context), base)?;
    let end = base.checked_add(len as u64).filter(|end| *end <= memory.base + memory.len);
    let Some(end) = end else {
        let detail = format!("{len} bytes end past the allocation's end at {:#x}", memory.base + memory.len);
        return refuse(Misuse::PastAllocation, code::CUDA_POINTER_RANGE_ERROR, &detail);
    };
    let mut state = State::lock();
    let near = state.buffers.range(..end).next_back().map(|(_, buffer)| buffer.clone());
    if let Some(other) = near.filter(|other| other.base + other.len > base) {
        drop(state);
        let misuse =
            if other.base == base { Misuse::DoubleRegister } else { Misuse::OverlappingRegistration };
        let detail = format!("{} bytes from {:#x} on are registered", other.len, other.base);
        return refuse(misuse, code::MEMORY_ALREADY_REGISTERED, &detail);
    }
    if let Some((limit, code)) = settings().register_limit
        && state.registered_bytes().saturating_add(len as u64) > limit
    {
        return Err(Error::cufile(code));
    }
    let buffer = Buffer { base, len: len as u64, in_flight: AtomicU64::new(0) };
    state.buffers.insert(base, Arc::new(buffer));
    state.past_buffers.remove(&base);
    drop(state);
    cuda::hold(base);
    Ok(())
}

fn deregister(call: &str, base: u64) -> Answer {
    let mut state = State::lock();
    let Some(buffer) = state.buffers.remove(&base) else {
        let (misuse, detail) = if state.past_buffers.contains_key(&base) {
            (Misuse::DoubleDeregister, "deregistered before")
        } else if state.buffer_around(base).is_some() {
            (Misuse::NotTheRegisteredBase, "inside a registration; give its base")
        } else {
            (Misuse::UnknownBuffer, "never registered")
        };
        drop(state);
        report(misuse, call, base, detail);
        return Err(Error::cufile(code::MEMORY_NOT_REGISTERED));
    };
    state.past_buffers.insert(base, buffer.len);
    drop(state);
    if state::any(&buffer.in_flight) {
        report(Misuse::DeregisterInFlight, call, base, "operations on this buffer have not finished");
    }
    let memory = cuda::memory(base);
    // Must come after the question, and whatever its answer.
    let held = cuda::let_go(base);
    if memory.is_none() || !held {
        report(Misuse::FreedWhileRegistered, call, base, "the memory of this registration is gone");
        return Err(Error::cufile(code::CUDA_POINTER_INVALID));
    }
    call::context_of(call, None, base)?;
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufRegister(base: u64, len: usize, flags: i32) -> Error {
    call::status("cuFileBufRegister", When::DriverOpen, || {
        let answer = register("cuFileBufRegister", base, len, flags);
        statistics::event(Event::BufferRegister { ok: answer.is_ok(), base, len: len as u64 });
        answer
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufDeregister(base: u64) -> Error {
    call::status("cuFileBufDeregister", When::DriverOpen, || {
        let answer = deregister("cuFileBufDeregister", base);
        statistics::event(Event::BufferDeregister { ok: answer.is_ok(), base });
        answer
    })
}
