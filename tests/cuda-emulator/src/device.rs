//! Devices: how many, what they say of themselves, and who may reach into whom.

use std::ffi::c_char;

use crate::attributes;
use crate::call;
use crate::context::ContextId;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::ffi::{Device, Out, Text, put_text};
use crate::misuse::Misuse;
use crate::settings::settings;

/// What changes about a device.
#[derive(Debug, Default)]
pub(crate) struct DeviceState {
    pub(crate) primary: Option<ContextId>,
    /// Retains without their release.
    pub(crate) primary_users: u64,
    pub(crate) primary_flags: u32,
    /// Bytes of its memory that are allocated.
    pub(crate) used: u64,
    /// The error of every later call, once the device is lost.
    pub(crate) lost: Option<Code>,
}

impl Driver {
    pub(crate) fn device(&self, device: Device) -> Answer<&DeviceState> {
        usize::try_from(device).ok().and_then(|at| self.devices.get(at)).ok_or(Code::INVALID_DEVICE)
    }

    pub(crate) fn device_mut(&mut self, device: Device) -> Answer<&mut DeviceState> {
        usize::try_from(device).ok().and_then(|at| self.devices.get_mut(at)).ok_or(Code::INVALID_DEVICE)
    }

    /// The device answers every later call, in each of its contexts, with `code`.
    pub(crate) fn lose_device(&mut self, device: Device, code: Code) {
        if let Ok(device) = self.device_mut(device) {
            device.lost.get_or_insert(code);
        }
        for context in self.contexts.values_mut().filter(|context| context.device == device) {
            context.break_with(code);
        }
    }
}

/// Which of the machine's devices this is, whichever of them the process sees.
fn physical(device: Device) -> i32 {
    usize::try_from(device).ok().and_then(|at| settings().devices.get(at).copied()).unwrap_or(device)
}

/// The PCI address: one bus per device.
pub(crate) fn pci_bus(device: Device) -> i32 {
    physical(device) + 1
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<i32>) -> Code {
    call::anywhere("cuDriverGetVersion", || version.set(settings().driver_version))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<i32>) -> Code {
    call::initialized("cuDeviceGetCount", |driver| count.set(driver.devices.len() as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<Device>, ordinal: i32) -> Code {
    call::initialized("cuDeviceGet", |driver| {
        driver.device(ordinal)?;
        device.set(ordinal)
    })
}

/// # Safety
///
/// `name` must be null or valid for `len` writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: Out<c_char>, len: i32, device: Device) -> Code {
    call::initialized("cuDeviceGetName", |driver| {
        driver.device(device)?;
        // SAFETY: the caller's buffer holds `len` bytes.
        unsafe { put_text(name, len, &format!("Emulated CUDA device {} (no GPU)", physical(device))) }
    })
}

fn uuid(call: &'static str, uuid: Out<[u8; 16]>, device: Device) -> Code {
    call::initialized(call, |driver| {
        driver.device(device)?;
        let mut bytes = *b"cuda-emulator-\0\0";
        bytes[15] = physical(device) as u8;
        uuid.set(bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: Device) -> Code {
    uuid("cuDeviceGetUuid", out, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: Device) -> Code {
    uuid("cuDeviceGetUuid_v2", out, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: Device) -> Code {
    call::initialized("cuDeviceTotalMem_v2", |driver| {
        driver.device(device)?;
        bytes.set(settings().memory as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: Device) -> Code {
    call::initialized("cuDeviceComputeCapability", |driver| {
        driver.device(device)?;
        major.set(attributes::COMPUTE_CAPABILITY.0)?;
        minor.set(attributes::COMPUTE_CAPABILITY.1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: Device) -> Code {
    call::initialized("cuDeviceGetAttribute", |driver| {
        driver.device(device)?;
        value.set(attributes::value(attribute, device).ok_or(Code::INVALID_VALUE)?)
    })
}

/// # Safety
///
/// `id` must be null or valid for `len` writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: Out<c_char>, len: i32, device: Device) -> Code {
    call::initialized("cuDeviceGetPCIBusId", |driver| {
        driver.device(device)?;
        // SAFETY: the caller's buffer holds `len` bytes.
        unsafe { put_text(id, len, &format!("0000:{:02X}:00.0", pci_bus(device))) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetByPCIBusId(device: Out<Device>, id: Text) -> Code {
    call::initialized("cuDeviceGetByPCIBusId", |driver| {
        // [domain]:[bus]:[device].[function], where domain and function may be left out.
        let text = id.read()?;
        let slot = text.split('.').next().unwrap_or_default();
        let mut fields = slot.rsplit(':').map(|field| i32::from_str_radix(field, 16));
        let (Some(Ok(0)), Some(Ok(bus))) = (fields.next(), fields.next()) else {
            return Err(Code::INVALID_VALUE);
        };
        if !matches!(fields.next(), None | Some(Ok(0))) {
            return Err(Code::INVALID_DEVICE);
        }
        let found = (0..driver.devices.len() as i32).find(|device| pci_bus(*device) == bus);
        device.set(found.ok_or(Code::INVALID_DEVICE)?)
    })
}

fn can_access(device: Device, peer: Device) -> bool {
    device != peer && settings().peer_access
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<i32>, device: Device, peer: Device) -> Code {
    call::initialized("cuDeviceCanAccessPeer", |driver| {
        driver.device(device)?;
        driver.device(peer)?;
        can.set(i32::from(can_access(device, peer)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: Device, peer: Device) -> Code {
    call::initialized("cuDeviceGetP2PAttribute", |driver| {
        driver.device(device)?;
        driver.device(peer)?;
        if device == peer {
            return Err(Code::INVALID_DEVICE);
        }
        match attribute {
            // Performance rank, access supported, native atomics, array access.
            2 => value.set(i32::from(can_access(device, peer))),
            1 | 3 | 4 => value.set(0),
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: ContextId, flags: u32) -> Code {
    call::in_context("cuCtxEnablePeerAccess", |driver, context| {
        let theirs = driver.context(peer)?.device;
        let ours = driver.context(context)?.device;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if peer == context {
            return driver.misuse(
                Misuse::WrongContext,
                peer as u64,
                Code::INVALID_CONTEXT,
                "a peer of itself",
            );
        }
        if !can_access(ours, theirs) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let context = driver.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?;
        if context.peers.insert(peer) { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDisablePeerAccess(peer: ContextId) -> Code {
    call::in_context("cuCtxDisablePeerAccess", |driver, context| {
        driver.context(peer)?;
        let context = driver.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?;
        if context.peers.remove(&peer) { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    })
}

/// Nothing here writes to device memory behind the driver's back, and so there is nothing to flush.
#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) -> Code {
    call::in_context("cuFlushGPUDirectRDMAWrites", |_, _| {
        if target == 0 && matches!(scope, 100 | 200) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    })
}
