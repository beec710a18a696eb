//! Primary contexts: one per device, shared by counting.

use crate::call;
use crate::context::ContextId;
use crate::error::{Answer, Code};
use crate::ffi::{Device, Out};

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<ContextId>, device: Device) -> Code {
    call::initialized("cuDevicePrimaryCtxRetain", |driver| {
        let state = driver.device(device)?;
        if context.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let (existing, flags) = (state.primary, state.primary_flags);
        // A context made anew gets a new handle, so that one kept across a reset is recognised as stale.
        let id = existing.unwrap_or_else(|| driver.new_context(device, flags, true));
        let state = driver.device_mut(device)?;
        state.primary = Some(id);
        state.primary_users += 1;
        context.set(id)
    })
}

fn release(call: &'static str, device: Device) -> Code {
    call::initialized(call, |driver| {
        let state = driver.device_mut(device)?;
        if state.primary_users == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        state.primary_users -= 1;
        if state.primary_users == 0
            && let Some(id) = state.primary.take()
        {
            driver.destroy_context(id);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease(device: Device) -> Code {
    release("cuDevicePrimaryCtxRelease", device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: Device) -> Code {
    release("cuDevicePrimaryCtxRelease_v2", device)
}

/// A reset takes the context down for everybody; the users keep their counts and must still release.
fn reset(call: &'static str, device: Device) -> Code {
    call::initialized(call, |driver| {
        if let Some(id) = driver.device_mut(device)?.primary.take() {
            driver.destroy_context(id);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset(device: Device) -> Code {
    reset("cuDevicePrimaryCtxReset", device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset_v2(device: Device) -> Code {
    reset("cuDevicePrimaryCtxReset_v2", device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(device: Device, flags: Out<u32>, active: Out<i32>) -> Code {
    call::initialized("cuDevicePrimaryCtxGetState", |driver| {
        let state = driver.device(device)?;
        flags.set(state.primary_flags)?;
        active.set(i32::from(state.primary.is_some()))
    })
}

fn set_flags(call: &'static str, device: Device, flags: u32) -> Code {
    call::initialized(call, |driver| -> Answer {
        let state = driver.device_mut(device)?;
        state.primary_flags = flags;
        let primary = state.primary;
        if let Some(context) = primary.and_then(|id| driver.contexts.get_mut(&id)) {
            context.flags = flags;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags(device: Device, flags: u32) -> Code {
    set_flags("cuDevicePrimaryCtxSetFlags", device, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: Device, flags: u32) -> Code {
    set_flags("cuDevicePrimaryCtxSetFlags_v2", device, flags)
}
