//! The machine by the kernel's name for it.

/// The machine's name (`uname -m`): `x86_64`, `armv7l`, …
pub fn name() -> String {
    // SAFETY: the structure is made of arrays of bytes, which may be 0; the call fills it with terminated strings.
    let found = unsafe {
        let mut found: libc::utsname = std::mem::zeroed();
        libc::uname(&raw mut found);
        found
    };
    let bytes = found.machine.iter().map(|byte| byte.to_ne_bytes()[0]);
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The version of the C library in this program: `2.36`.
pub fn c_library_version() -> String {
    // SAFETY: the library returns a terminated string of its own that never changes.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_machine_has_the_name_that_uname_shows() {
        let shown = std::process::Command::new("uname").arg("-m").output();
        let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
        assert_eq!(super::name(), shown.trim());
    }
}
