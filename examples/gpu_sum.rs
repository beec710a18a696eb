//! Runs a small kernel over batches that the loader brings to the GPU: the sum of all pixels of each image.
//!
//! `cargo run --release --example gpu_sum [FOLDER]`. It needs an NVIDIA GPU; on a machine without one it says why not.
//! The kernel is kept below as PTX, so that no CUDA toolkit is needed.

use std::ffi::{CString, c_void};

use gpufeed::cudarc::driver::{CudaContext, DevicePtrMut, result};
use gpufeed::{Dataset, Device, ErrorKind, Loader, Shuffle};

/// `sums[i] = the sum of the 64 bytes of image i`, one thread an image.
const KERNEL: &str = r"
.version 6.0
.target sm_50
.address_size 64

.visible .entry sum64(.param .u64 images, .param .u64 sums, .param .u32 count)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [images];
    ld.param.u64 %rd2, [sums];
    ld.param.u32 %r1, [count];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd3, %r2, 64;
    add.s64 %rd3, %rd1, %rd3;
    mov.u32 %r5, 0;
    mov.u32 %r6, 0;
NEXT:
    ld.global.u8 %r7, [%rd3];
    add.u32 %r5, %r5, %r7;
    add.s64 %rd3, %rd3, 1;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p2, %r6, 64;
    @%p2 bra NEXT;
    mul.wide.u32 %rd4, %r2, 4;
    add.s64 %rd4, %rd2, %rd4;
    st.global.u32 [%rd4], %r5;
DONE:
    ret;
}
";

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| "datasets/digits".into());
    let dataset = Dataset::open(&folder)?;
    let built = Loader::builder(dataset)
        .device(Device::Cuda(0))
        .batch_size(128)
        .shuffle(Shuffle::Full)
        .seed(1)
        .build();
    let mut loader = match built {
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            println!("not run: {error}");
            return Ok(());
        }
        built => built?,
    };
    let context = CudaContext::new(0)?;
    let source = CString::new(KERNEL)?;
    // SAFETY: the context is current (`new` saw to that), and the PTX is a C string.
    let module = match unsafe { result::module::load_data(source.as_ptr().cast()) } {
        Ok(module) => module,
        Err(error) => {
            println!("not run: device cuda:0 takes no kernels: {error}");
            return Ok(());
        }
    };
    // SAFETY: the module was loaded above and is never unloaded.
    let kernel = unsafe { result::module::get_function(module, CString::new("sum64")?) }?;
    let stream = context.new_stream()?;
    let mut sums = stream.alloc_zeros::<u32>(128)?;

    let (mut total, mut checked) = (0u64, Vec::new());
    for batch in loader.epoch(0)? {
        let batch = batch?;
        // The stream waits for the bytes, and the slot for the stream; this thread waits for neither.
        batch.wait_on(&stream)?;
        let images = batch.column("image")?;
        let count = batch.len() as u32;
        {
            let mut pointer =
                images.device_ptr().ok_or_else(|| anyhow::anyhow!("the batch is not on the GPU"))?;
            let (mut output, _guard) = sums.device_ptr_mut(&stream);
            let mut number = count;
            let mut arguments = [
                (&raw mut pointer).cast::<c_void>(),
                (&raw mut output).cast::<c_void>(),
                (&raw mut number).cast::<c_void>(),
            ];
            // SAFETY: the kernel reads count x 64 bytes of the batch, which has them and which the stream waited for,
            // and writes count sums of the 128; the arguments have the kernel's types and live through the call.
            unsafe {
                let (blocks, threads) = ((count.div_ceil(64), 1, 1), (64, 1, 1));
                result::launch_kernel(kernel, blocks, threads, 0, stream.cu_stream(), &mut arguments)
            }?;
        }
        let found = stream.clone_dtoh(&sums)?;

        images.copy_to_host(&mut checked)?;
        for (row, image) in checked.chunks_exact(64).enumerate() {
            let right: u32 = image.iter().map(|&pixel| u32::from(pixel)).sum();
            anyhow::ensure!(
                found[row] == right,
                "image {}: {} is not {right}",
                batch.samples()[row],
                found[row]
            );
            total += u64::from(right);
        }
    }
    println!("the GPU and the host agree on every image; all pixels add up to {total}");
    Ok(())
}
