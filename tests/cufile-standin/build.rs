//! Gives the library the name that cuFile programs ask the loader for: preloaded or found under any file name, it is
//! then what `dlopen("libcufile.so.0")` finds.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcufile.so.0");
}
