//! The memory allocator's settings, and memory returned to the system. A program that runs for months should keep little
//! memory that it does not use.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;

use super::process;

/// Settings that the C library reads from the environment when a program starts; there is no other way to set them.
/// Threads do not cache freed memory: cached pieces would keep the pages around them from being returned, a third of an
/// agent's memory. Stacks of ended threads are not cached either.
pub const TUNABLES: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.tcache_count=0:glibc.pthread.stack_cache_size=0",
);

/// Starts this program again in its own place, with [`TUNABLES`]. Returns if the variable is already set, to these or other
/// settings, or if the program cannot be started. To be called before any thread exists.
pub fn start_again_tuned() {
    let (name, value) = TUNABLES;
    if std::env::var_os(name).is_some() {
        // Not for programs that are started from here.
        process::unset_env(name);
        return;
    }
    // SAFETY: getauxval has no preconditions.
    let filtered = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if filtered {
        // The variable would not arrive, and this would never end.
        return;
    }
    let text = |text: &OsStr| CString::new(text.as_bytes());
    let arguments: Result<Vec<_>, _> = std::env::args_os().map(|word| text(&word)).collect();
    let pairs =
        std::env::vars_os().map(|(name, value)| [name, "=".into(), value].join(OsStr::new("")));
    let tuned = format!("{name}={value}");
    let environment = pairs.chain([tuned.into()]).map(|pair| text(&pair));
    let environment: Result<Vec<_>, _> = environment.collect();
    if let (Ok(program), Ok(arguments), Ok(environment)) =
        (std::env::current_exe(), arguments, environment)
        && let Ok(program) = text(program.as_os_str())
    {
        // It only returns after a failure. Without the settings more memory is used, which is no reason to end.
        let _ = process::exec(&program, &arguments, &environment);
    }
}

/// Returns unused memory to the system: freed heap, and former stack.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
    if let Some(low) = stack_start() {
        trim_stack(low);
    }
}

/// The lowest address of the main thread's stack.
fn stack_start() -> Option<usize> {
    let maps = super::file::read_text("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[stack]"))?;
    usize::from_str_radix(line.split_once('-')?.0, 16).ok()
}

/// Drops the pages between `low` and a safe distance below this function's own frame.
#[inline(never)]
fn trim_stack(low: usize) {
    const PAGE: usize = 1 << 16; // The largest page size of any supported machine; smaller ones divide it.
    const DISTANCE: usize = 4096;
    let marker = 0u8;
    let here = (&raw const marker) as usize;
    let Some(page) = usize::try_from(page_size())
        .ok()
        .filter(|size| *size <= PAGE)
    else {
        return;
    };
    let end = here.saturating_sub(DISTANCE) / page * page;
    if end > low && end - low < 16 << 20 {
        // SAFETY: these pages belong to the stack below every live frame; they read as zero when next used.
        unsafe { libc::madvise(low as *mut libc::c_void, end - low, libc::MADV_DONTNEED) };
    }
}

fn page_size() -> libc::c_long {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }
}

/// All threads share one heap, so that more threads take no more address space.
pub fn one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt has no preconditions; unknown options only fail.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Limits the allocator's reserve: one arena for all threads, small top pad, large blocks by mmap.
pub fn tune() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt has no preconditions; unknown options only fail.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, 4096);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 32 * 1024);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024);
    }
}
